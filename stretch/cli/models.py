"""`stretch models`: the models that have a name."""

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

#: Most models that are looked at in detail at once: each is built and captured.
MOST_DETAILED = 30


class ListedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model that has a name."""

    name: str  # Its name.
    family: str  # Whose it is; of a file ``file``.
    checked: bool  # Whether it is branched in the project's tests.


class DetailedModel(ListedModel, frozen=True, kw_only=True):
    """A model with what can be done to it."""

    million_macs: float  # Multiply-accumulates of one inference.
    #: How it became operators: ``traced`` down to single channels, ``exported`` operator by operator, or ``refused``.
    captured: Literal["traced", "exported", "refused"]
    stages: list[StageAbilities]  # What can be scaled and divided, stage by stage; none where it was refused.
    why: str  # Why it was refused; empty where it was not.


class ModelsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Models by name; the fields are the keys of `stretch models --json`."""

    items: list[ListedModel] | list[DetailedModel]  # Each model, where details are asked for with what can be done to it.


@verb
def models(
    out: Output,
    pattern: Annotated[
        str, typer.Argument(help="Wildcard pattern, such as 'resnet*' or 'timm:*next*'; or an .onnx, .pt2 or .tflite file.")
    ] = "*",
    details: Annotated[
        bool,
        typer.Option("--details", help="Capture each model and tell what of it can be scaled, divided exactly or only placed, and why."),
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
    """The models of a pattern, or the one that is a file."""
    from stretch.models import model_names
    from stretch.models.families import OWN, each_family
    from stretch.models.load import FILES

    if pattern.endswith(FILES) and Path(pattern).is_file():
        return [ListedModel(name=pattern, family="file", checked=False)]
    known = model_names(pattern)
    checked = set()
    for key, family in each_family():
        # another package's family may lack what is of use to this project alone
        if key in OWN or any(found == key for _, found in known):
            checked |= {family.prefix + name for name in getattr(family, "checked", frozenset)()}
    if not known:
        raise UnknownNameError.among("model", pattern, [name for name, _ in model_names()])
    return [ListedModel(name=name, family=family, checked=name in checked) for name, family in known]


def _detailed(out: Output, items: Sequence[ListedModel], pattern: str, shape: "InputShapes | None") -> list[DetailedModel]:
    """Each model captured with random weights, a file with its own."""
    if len(items) > MOST_DETAILED:
        raise UsageError(
            f"{len(items)} models match `{pattern}`, and details are told of up to {MOST_DETAILED} at once", "give a narrower pattern"
        )
    found = []
    with out.progress("models", total=len(items)) as step:
        for number, item in enumerate(items):
            step(item.name, number)
            found.append(_details_of(item, shape))
    return found


def _details_of(item: ListedModel, shape: "InputShapes | None") -> DetailedModel:
    from stretch.planning.design.abilities import abilities
    from stretch.stages.network import read_network

    listed = msgspec.structs.asdict(item)
    try:
        network = read_network(item.name, shape, weights="default" if item.family == "file" else "none")
        stages = abilities(network.graph)
    except UsageError:
        # what is asked for is wrong, not the model
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
            told = f"refused: {item.why}" if item.captured == "refused" else f"{item.million_macs:.4g} MMACs, {item.captured}"
            console.print(f"{item.name}  ({told})", highlight=False)
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
