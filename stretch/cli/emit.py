"""`stretch emit`: a model or a bundle as a Python package without nn-stretch."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from predictors.errors import MissingBackendError
from predictors.install import install_line
from stretch.cli.inputs import InputSizes, read_inputs
from stretch.cli.interrupt import WRITER_GRACE_S
from stretch.cli.output import Output, verb

if TYPE_CHECKING:
    from rich.console import Console

    from stretch.stages.emit import EmitAnswer

#: Seconds after Ctrl-C in which it leaves nothing half-written.
GRACE_S = WRITER_GRACE_S


@verb
def emit(
    out: Output,
    *,
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL_OR_BUNDLE",
            help="Folder of an fp32 bundle with its controls, or a model: a name of `stretch models`, package.module:factory, file.py:factory or a model file.",
        ),
    ],
    folder: Annotated[Path, typer.Option("--out", help="Folder of the package, which must not exist yet; its name is the package's.")],
    weights: Annotated[str, typer.Option(help="Of a model: default, none, or a .safetensors or .pth file.")] = "default",
    input_size: InputSizes = None,
    seed: Annotated[int, typer.Option(help="Of random weights.")] = 0,
    trust_code: Annotated[bool, typer.Option("--trust-code", help="Allow file.py:factory to be executed.")] = False,
) -> None:
    """Write readable torch code and safetensors: a class a branch, which runs, trains and exports without nn-stretch."""
    import importlib.util

    shape = read_inputs(input_size)
    if importlib.util.find_spec("torch") is None:
        raise MissingBackendError("writing torch code needs torch, which is not installed", install_line("torch"))
    from msgspec.structs import replace

    from stretch.stages.emit import emit as write

    with out.progress("writing"):
        answer = write(model, folder, shape, weights=weights, seed=seed, trust_code=trust_code)
    for warning in answer.warnings:
        out.warn(warning)
    answer = replace(answer, warnings=out.warnings)
    out.emit(answer, lambda console: _print(console, answer))


def _print(console: "Console", answer: "EmitAnswer") -> None:
    what = f"{answer.network} in {answer.segments} segments" if answer.branched else answer.network
    console.print(f"{what}: {len(answer.files)} files, outputs differ by {answer.max_error:.1e} of the largest")
    # not wrapped: this line is there to be copied
    console.print(f"from {answer.package.name} import load  # in {answer.package.absolute().parent}", soft_wrap=True)
