"""`stretch export --as cpp`: the sources of a program that runs the branches on LiteRT."""

from pathlib import Path

import msgspec

from scheduler.progress import Progress
from stretch.api.exporters.base import Exporter, exporters, written_page
from stretch.report.html.page import Page


class RunnerAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Sources of a C++ program; the fields are the keys of `stretch export --as cpp --json`."""

    model: str  # Name of the model.
    device: str  # Id of the profile for which the model was planned.
    out: str  # Folder of the sources.
    files: list[str]  # Names of the files in the folder.
    sha256: str  # SHA-256 of the TFLite file, the only one that the built program accepts.
    warnings: list[str]  # Warnings for the user.


def _write(source: str, out: Path, *, progress: Progress) -> RunnerAnswer:
    from scheduler.bundle.load import load_bundle
    from scheduler.tools.runner.sources import write_runner

    loaded = load_bundle(source, check_hashes=True)
    files, manifest = write_runner(loaded, out), loaded.manifest
    sha256 = manifest.files[str(manifest.tflite)].sha256
    return RunnerAnswer(model=manifest.model.name, device=manifest.device, out=str(out), files=files, sha256=sha256, warnings=[])


def _page(answer: RunnerAnswer) -> Page:
    folder = answer.out
    lines = [
        f"{answer.model} for {answer.device}: {len(answer.files)} files in {folder}",
        f"build them: cmake -S {folder} -B BUILD -DLITERT_LIBRARY=/path/to/libLiteRt.so && cmake --build BUILD",
        f"run them:   BUILD/runner {folder}/model.tflite --out RESULTS",
    ]
    return written_page((), (), lines)


exporters.register("cpp")(Exporter("sources of a program that runs the branches on LiteRT without Python", _write, _page))
