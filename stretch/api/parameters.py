"""Options that verbs share: the annotation states an option's flag, its parser, and its help."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from msgspec import Meta

from predictors.errors import UsageError
from predictors.shapes import InputShapes
from scheduler.bundle.preprocessing import Preprocessing

if TYPE_CHECKING:
    from torch import nn

    from predictors.devices import DeviceProfile


#: Headings of the planner's options and of the calibration's options in the help.
PANEL, CALIBRATION = "Options of the design", "Options of calibration"


class AdvancedOption(str):
    """Help of a parameter without a flag: ``Annotated[int, AdvancedOption("…")]``."""


class Parsed(NamedTuple):
    """Command-line form of a parameter whose type the command line's parser does not support."""

    kind: Any  # Type that the command line's parser returns.
    read: Callable[[Any], Any]  # Returns the parameter's value for the parser's result.


_EXAMPLE = (
    "write channels, height and width as 3x224x224, with the batch as 4x3x224x224, and any other shape with the input's name "
    "as NAME=1x16000; of several inputs each has a name"
)


def read_inputs(texts: Sequence[str] | None) -> InputShapes | None:
    """Parse input shapes, batch first; None without `--input`."""
    if not texts:
        return None
    pairs = [text.partition("=")[::2] if "=" in text else ("", text) for text in texts]
    names = [name.strip() for name, _ in pairs]
    if merged := next((text for text in texts if text.count("=") > 1), None):
        several = " ".join(f"--input {part}" for part in re.split(r",(?=[^,=]*=)", merged))
        raise UsageError(f"--input {merged} has several inputs", f"give each its own: {several}")
    if any(names) and (not all(names) or len(set(names)) < len(names)):
        raise UsageError(f"the inputs {', '.join(texts)} need distinct names", _EXAMPLE)
    shapes = [_shape(text, named=bool(name)) for name, text in pairs]
    if any(names):
        return dict(zip(names, shapes, strict=True))
    return shapes[0] if len(shapes) == 1 else shapes


def _shape(text: str, *, named: bool) -> tuple[int, ...]:
    parts = text.strip().lower().replace("×", "x").replace(",", "x").split("x")
    if not all(part.isascii() and part.isdigit() and 0 < int(part) < 1 << 16 for part in parts) or len(parts) > 8:
        raise UsageError(f"--input {text} is no shape", _EXAMPLE)
    shape = tuple(map(int, parts))
    if not named and len(shape) not in (3, 4):
        raise UsageError(f"--input {text} is not channels, height and width, nor the batch and those", _EXAMPLE)
    # three numbers without a name are the shape of one image
    return shape if named or len(shape) == 4 else (1, *shape)


def input_words(shapes: InputShapes | None) -> list[str]:
    """Return the command-line options for input shapes; empty for None."""
    if shapes is None:
        return []
    if isinstance(shapes, Mapping):
        return [word for name, shape in shapes.items() for word in ("--input", f"{name}={'x'.join(map(str, shape))}")]
    several: Any = [shapes] if not shapes or hasattr(shapes[0], "__index__") else shapes
    return [word for shape in several for word in ("--input", "x".join(map(str, shape)))]


def read_names(text: str | None) -> list[str] | None:
    """Return names from a comma-separated text; None for None."""
    return None if text is None else [name.strip() for name in text.split(",")]


def read_places(texts: Sequence[str] | None) -> dict[str, str]:
    """Return the delegates by processor, from `--map`."""
    from scheduler.placement.mapping import parse_mapping

    return parse_mapping(texts or ())


def complete_device(start: str) -> list[str]:
    """Return matching ids of profiles, for shell completion."""
    from predictors.devices import list_devices

    return [name for name in list_devices() if name.startswith(start)]


def device_option(help: str) -> Any:
    """Return the option ``--device`` with a verb's own help and shell completion."""
    return typer.Option("--device", "-d", help=help, autocompletion=complete_device)


def complete_model(start: str) -> list[str]:
    """Return matching names of models, for shell completion."""
    from stretch.network.models.families import quick_names

    return [name for name in quick_names(start) if name.startswith(start)]


InputShape = Annotated[
    InputShapes | None,
    typer.Option(
        "--input", help="Input shape, such as 3x224x224 or, with the batch, 4x3x224x224; for several inputs one NAME=1x3x224x224 each."
    ),
    Parsed(list[str] | None, read_inputs),
]
Model = Annotated[
    "str | nn.Module",
    typer.Argument(
        help="Name of `stretch list models`, package.module:factory, file.py:factory, or an .onnx, .pt2 or .tflite file.",
        autocompletion=complete_model,
    ),
    Parsed(str, str),
]
Device = Annotated[
    "str | Path | DeviceProfile",
    device_option("Id of a profile (see `stretch list devices`), or the path of one."),
    Parsed(str, str),
]
TrustCode = Annotated[bool, typer.Option("--trust-code", help="Allow running Python code from file.py:factory or a .pt2 file.")]
Weights = Annotated[str, typer.Option(help="default (trained weights where available), none (random weights), or a file.")]
Processors = Annotated[
    Sequence[str] | None,
    typer.Option(help="Processors to use, such as cpu,gpu; subgraphs of the others move to them."),
    Parsed(str | None, read_names),
]
BundleFolder = Annotated[str | Path, typer.Argument(help="Folder of a bundle.")]
DelegateMap = Annotated[
    Mapping[str, str],
    typer.Option(
        "--map", help="Run a processor's subgraphs elsewhere on this machine, such as gpu=cpu1. Repeatable, or separated by commas."
    ),
    Parsed(list[str] | None, read_places),
]
NO_PLACES: Mapping[str, str] = MappingProxyType({})
PreprocessingOption = Annotated[
    Preprocessing | Mapping[str, Any] | None,
    AdvancedOption(
        "Preprocessing of pictures in place of the model's, such as preprocessing.crop=0.9 or preprocessing.mean=[0.5,0.5,0.5]."
    ),
    Parsed(dict[str, Any] | None, dict),
]
MeasuredBlocks = Annotated[
    Annotated[int, Meta(ge=4, le=1000)] | None,
    AdvancedOption(
        "Number of blocks whose loss is measured to predict agreement, next to a quarter as many segments and a few designs. "
        "Default: by the network's size, for some minutes of two cores."
    ),
]
