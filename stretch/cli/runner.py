"""`stretch runner`: a C++ program that runs a bundle's branches without Python, as sources."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from stretch.cli.output import Output, verb

if TYPE_CHECKING:
    from rich.console import Console


class RunnerAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What was written; the fields are the keys of `stretch runner --json`."""

    model: str  # Name of the model.
    device: str  # Profile that it was planned for.
    out: str  # The folder.
    files: list[str]  # Names of what is in it.
    sha256: str  # Of the TFLite file, the only one that the built program takes.
    warnings: list[str]  # What a person should know.


@verb
def runner(
    out: Output,
    bundle: Annotated[Path, typer.Argument(help="Folder of a bundle with a TFLite file.")],
    folder: Annotated[Path, typer.Option("--out", help="Folder for the sources, which must not exist yet.")],
) -> None:
    """Write the sources of a C++ program that runs a bundle's branches on LiteRT, on a phone or here, to build with CMake."""
    from scheduler.bundle.load import load_bundle
    from scheduler.runner.sources import write_runner

    loaded = load_bundle(bundle, check_hashes=True)
    files = write_runner(loaded, folder)
    manifest = loaded.manifest
    answer = RunnerAnswer(
        model=manifest.model.name,
        device=manifest.device,
        out=str(folder),
        files=files,
        sha256=manifest.files[str(manifest.tflite)].sha256,
        warnings=out.warnings,
    )
    out.emit(answer, lambda console: _print(console, answer))


def _print(console: "Console", answer: RunnerAnswer) -> None:
    console.print(f"{answer.model} for {answer.device}: {len(answer.files)} files in {answer.out}")
    console.print(f"build them: cmake -S {answer.out} -B BUILD -DLITERT_LIBRARY=/path/to/libLiteRt.so && cmake --build BUILD")
    console.print(f"run them:   BUILD/runner {answer.out}/model.tflite --out RESULTS", soft_wrap=True)
