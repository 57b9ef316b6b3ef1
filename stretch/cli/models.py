"""`stretch models`: list models by name."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer

from predictors.errors import StretchError, UnknownNameError, UsageError
from stretch.cli.inputs import InputSizes, read_inputs
from stretch.cli.output import Output, verb
from stretch.planning.design.abilities import StageAbilities

if TYPE_CHECKING:
    from rich.console import Console

    from stretch.capture.inputs import InputShapes

#: Maximum number of models with `--details`: each is built and captured.
MOST_DETAILED = 30


class ListedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A named model."""

    name: str
    family: str  # Its model family; ``file`` for a file.
    checked: bool  # Whether the project's tests branch it.


class DetailedModel(ListedModel, frozen=True, kw_only=True):
    """A model and how it can be branched."""

    million_macs: float  # Multiply-accumulates of one inference.
    #: How it was captured: ``traced`` down to single channels, ``exported`` operator by operator, or ``refused``.
    captured: Literal["traced", "exported", "refused"]
    stages: list[StageAbilities]  # How each stage can be scaled and divided; empty if refused.
    why: str  # Reason of a refusal, or empty.


class ModelsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Models by name; the fields are the keys of `stretch models --json`."""

    items: list[ListedModel] | list[DetailedModel]  # The latter with `--details`.


@verb
def models(
    out: Output,
    pattern: Annotated[
        str, typer.Argument(help="Wildcard pattern, such as 'resnet*' or 'timm:*next*'; or an .onnx, .pt2 or .tflite file.")
    ] = "*",
    details: Annotated[
        bool,
        typer.Option(
            "--details", help="Capture each model and show which of its stages can be scaled, divided exactly or only placed, and why."
        ),
    ] = False,
    input_size: InputSizes = None,
) -> None:
    """List models by name; those marked `checked` are branched in the project's tests."""
    shape = read_inputs(input_size)
    if shape is not None and not details:
        raise UsageError("a list of models reads no input", "leave out --input, or add --details")
    items = _listed(pattern)
    if details:
        _print_details(out, _detailed(out, items, pattern, shape))
        return

    def human(console: "Console") -> None:
        width = max(len(item.name) for item in items)
        for item in items:
            console.print(f"{item.name:<{width}}  {item.family:<11}  {'checked' if item.checked else ''}".rstrip())

    out.emit(ModelsAnswer(items=items), human)


def _listed(pattern: str) -> list[ListedModel]:
    """The models that match a pattern, or a file."""
    from stretch.models import model_names
    from stretch.models.families import OWN, each_family
    from stretch.models.load import FILES

    if pattern.endswith(FILES) and Path(pattern).is_file():
        return [ListedModel(name=pattern, family="file", checked=False)]
    known = model_names(pattern)
    checked = set()
    for key, family in each_family():
        # families of other packages may lack attributes that only this project uses
        if key in OWN or any(known_key == key for _, known_key in known):
            checked |= {family.prefix + name for name in getattr(family, "checked", frozenset)()}
    if not known:
        raise UnknownNameError.among("model", pattern, [name for name, _ in model_names()])
    return [ListedModel(name=name, family=family, checked=name in checked) for name, family in known]


def _detailed(out: Output, items: Sequence[ListedModel], pattern: str, shape: "InputShapes | None") -> list[DetailedModel]:
    """Capture models with random weights, or files with theirs."""
    if len(items) > MOST_DETAILED:
        raise UsageError(f"{len(items)} models match `{pattern}`, and --details shows up to {MOST_DETAILED}", "give a narrower pattern")
    detailed = []
    with out.progress("models", total=len(items)) as step:
        for number, item in enumerate(items):
            step(item.name, number)
            detailed.append(_details_of(item, shape))
    return detailed


def _details_of(item: ListedModel, shape: "InputShapes | None") -> DetailedModel:
    from stretch.planning.design.abilities import abilities
    from stretch.stages.network import read_network

    listed = msgspec.structs.asdict(item)
    try:
        network = read_network(item.name, shape, weights="default" if item.family == "file" else "none")
        stages = abilities(network.graph)
    except UsageError:
        # the request is wrong, not the model
        raise
    except StretchError as error:
        return DetailedModel(**listed, million_macs=0.0, captured="refused", stages=[], why=error.message)
    graph = network.graph
    how: Literal["traced", "exported"] = "exported" if network.captured.refusal else "traced"
    return DetailedModel(**listed, million_macs=round(graph.macs / 1e6, 1), captured=how, stages=stages, why="")


def _print_details(out: Output, items: list[DetailedModel]) -> None:
    def human(console: "Console") -> None:
        from stretch.report.fit import column, plain_table

        for item in items:
            outcome = f"refused: {item.why}" if item.captured == "refused" else f"{item.million_macs:.4g} MMACs, {item.captured}"
            console.print(f"{item.name}  ({outcome})", highlight=False)
            if not item.stages:
                continue
            table = plain_table()
            for title in ("stage", "shape", "blocks", "scaled", "exact", "why not stretched"):
                column(table, title, fold=title.startswith("why"))
            for stage in item.stages:
                blocks = f"{stage.min_depth} to {stage.depth}" if stage.min_depth < stage.depth else str(stage.depth)
                scaled, exact = ", ".join(stage.scaled) or "-", ", ".join(stage.exact) or "placed only"
                table.add_row(stage.name, "×".join(map(str, stage.shape[1:])), blocks, scaled, exact, stage.why)
            console.print(table)

    out.emit(ModelsAnswer(items=items), human)
