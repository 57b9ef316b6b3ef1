"""Arguments and flags that several verbs have, and the shapes of `--input`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from predictors.errors import UsageError

if TYPE_CHECKING:
    from predictors.graph import OpGraph
    from stretch.capture.inputs import InputShapes
    from stretch.cli.output import Output

#: The flag, for every verb that reads a model.
InputSizes = Annotated[
    list[str] | None,
    typer.Option(
        "--input", help="Input shape, such as 3x224x224 or, with the batch, 4x3x224x224; for several inputs one NAME=1x3x224x224 each."
    ),
]

Model = Annotated[
    str, typer.Argument(help="Name of `stretch list models`, package.module:factory, file.py:factory, or an .onnx, .pt2 or .tflite file.")
]
Device = Annotated[str, typer.Option(help="Id of a profile (see `stretch list devices`), or the path of one.")]
Weights = Annotated[str, typer.Option(help="default (trained weights where available), none (random weights), or a file.")]
TrustCode = Annotated[bool, typer.Option("--trust-code", help="Allow file.py:factory to execute that file.")]
BundleFolder = Annotated[Path, typer.Argument(help="Folder of a bundle.")]
Mapping = Annotated[
    list[str] | None,
    typer.Option("--map", help="Place where a processor's subgraphs run here, such as gpu=cpu1; repeat or separate by commas."),
]
Processors = Annotated[str | None, typer.Option(help="Processors to use, such as cpu,gpu; subgraphs of the others move to them.")]

_EXAMPLE = "write channels, height and width as 3x224x224, with the batch as 4x3x224x224, and for several inputs one NAME=1x3x224x224 each"


def read_inputs(texts: Sequence[str] | None) -> "InputShapes | None":
    """Parse input shapes, batch first; None without `--input`."""
    if not texts:
        return None
    pairs = [text.partition("=")[::2] if "=" in text else ("", text) for text in texts]
    names = [name.strip() for name, _ in pairs]
    if any(names) and (not all(names) or len(set(names)) < len(names)):
        raise UsageError(f"the inputs {', '.join(texts)} need distinct names", _EXAMPLE)
    shapes = [_shape(text, named=bool(name)) for name, text in pairs]
    if any(names):
        return dict(zip(names, shapes, strict=True))
    return shapes[0] if len(shapes) == 1 else shapes


def read_names(text: str | None) -> list[str] | None:
    """Names separated by commas; None without any."""
    return None if text is None else [name.strip() for name in text.split(",")]


def tell_size(out: "Output", shapes: "InputShapes | None", graph: "OpGraph") -> None:
    """Print the input shape in use if `--input` names none."""
    if shapes is None:
        sizes = ", ".join("×".join(map(str, op.shape)) for op in graph.inputs)
        out.note(f"input {sizes}: the model's usual size, as --input names none")


def _shape(text: str, *, named: bool) -> tuple[int, ...]:
    parts = text.strip().lower().replace("×", "x").replace(",", "x").split("x")
    if not all(part.isascii() and part.isdigit() and 0 < int(part) < 1 << 16 for part in parts) or len(parts) > 8:
        raise UsageError(f"--input {text} is no shape", _EXAMPLE)
    shape = tuple(map(int, parts))
    if not named and len(shape) not in (3, 4):
        raise UsageError(f"--input {text} is not channels, height and width, nor the batch and those", _EXAMPLE)
    # three numbers without a name are one image
    return shape if named or len(shape) == 4 else (1, *shape)
