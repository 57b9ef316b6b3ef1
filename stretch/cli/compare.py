"""`stretch compare`: compare bundles, plans, searches and runs by what they state, or files and bundles by timing them in turns."""

import platform
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from predictors.errors import UsageError
from scheduler.tools.bench import PANEL, BenchRequest, MeasurementLength
from stretch.cli.options import Call, calls, settings
from stretch.cli.output import Output, no_flags, only_flags, verb
from stretch.cli.pages import Html
from stretch.parameters import InputShape, TrustCode
from stretch.planning.config import PlanConfig

if TYPE_CHECKING:
    from predictors.devices import DeviceProfile
    from predictors.graph import OpGraph
    from scheduler.tools.bench.subject import InputShapes
    from stretch.comparison import ComparedRow
    from stretch.stages.network import Readout

#: Parameters of timing alone.
TIMING = "runtimes cores rounds starts warmup width seed"


@verb
@settings()
@calls(BenchRequest, MeasurementLength)
def compare(
    out: Output,
    request: Call,
    length: Call,
    *,
    what: Annotated[
        list[str],
        typer.Argument(
            help="Bundle folders, JSON output of `branch`, `search` or `run`, or models, which are planned for each device; "
            "with --measure ONNX files, TFLite files and bundle folders."
        ),
    ],
    device: Annotated[
        list[str] | None, typer.Option("--device", "-d", help="Id or path of a device profile that models are planned for; repeatable.")
    ] = None,
    config: PlanConfig,
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Time the files and bundles here in turns, with confidence intervals.", rich_help_panel=PANEL),
    ] = False,
    inputs: InputShape = None,
    html: Html = None,
    trust_code: TrustCode = False,
) -> None:
    """Compare bundles, plans, searches and runs in one table, or time files in turns."""
    if measure:
        only_flags("--measure", f"what measure html inputs {TIMING}")
        _measure(out, request(what, inputs=_named_shapes(inputs), effort=length()), html)
    else:
        from stretch.stages.network import read_graph

        no_flags("a comparison without --measure", TIMING, "add --measure")
        _compare(out, what, device or [], config, html, partial(read_graph, shape=inputs, trust_code=trust_code))


def _compare(
    out: Output, what: Sequence[str], devices: Sequence[str], request: PlanConfig, html: Path | None, read: "Callable[[str], Readout]"
) -> None:
    """Compare by what bundles, results and plans state."""
    from predictors.devices import load_device
    from scheduler.bundle.load import load_bundle
    from stretch.comparison import CompareAnswer, bundle_row, rows_of_file, warnings_of
    from stretch.tools.report.comparison import comparison_page

    models = [name for name in what if not _is_result(name)]
    if models and not devices:
        raise UsageError(
            f"{models[0]} is no bundle and no file of a result",
            "give --device D to have it planned as a model, or --measure to have files timed",
        )
    if devices and not models:
        raise UsageError("--device is for models, and none is compared", "leave it out, or name a model")
    if not models:
        no_flags("a comparison without models", "inputs")
    profiles = [load_device(name) for name in devices]
    rows: list[ComparedRow] = []
    with out.progress("comparing", total=len(what)) as step:
        for name in what:
            step(name)
            if Path(name).is_dir():
                rows.append(bundle_row(name.rstrip("/"), load_bundle(Path(name))))
            else:
                rows += rows_of_file(Path(name)) if _is_result(name) else _model_rows(read(name).graph, profiles, request)
    out.show(CompareAnswer(rows=rows, warnings=warnings_of(rows)), comparison_page, html)


def _is_result(name: str) -> bool:
    """Whether a word names a bundle or a file rather than a model."""
    return Path(name).is_dir() or name.endswith(".json")


def _model_rows(graph: "OpGraph", profiles: "list[DeviceProfile]", request: PlanConfig) -> "list[ComparedRow]":
    """Plan a model for each device; a device without a feasible design gets a row with the reason."""
    from predictors.errors import InfeasibleError
    from stretch.comparison import plan_row, refused_row
    from stretch.planning.messages import as_flag, error_spelled
    from stretch.planning.plan import plan

    rows = []
    for profile in profiles:
        label = f"{graph.name} on {profile.id}"
        try:
            rows.append(plan_row(label, plan(graph, profile, request).answer()))
        except InfeasibleError as error:
            rows.append(refused_row(label, graph.name, profile.id, error_spelled(error, as_flag).message))
    return rows


def _measure(out: Output, request: BenchRequest, html: Path | None) -> None:
    """Time files and bundles in turns."""
    from scheduler.tools.bench.compare import compare as time_in_turns
    from stretch.environment import OTHERS, processor_name, version
    from stretch.tools.report.comparison import bench_page

    versions = {"python": platform.python_version()} | {name: known for name in ("nn-stretch", *OTHERS) if (known := version(name))}
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    with out.progress("timing", total=request.effort.rounds * request.effort.starts) as step:
        answer = time_in_turns(replace(request, processor=processor_name(), system=system, versions=versions), step)
    out.show(answer, bench_page, html)


def _named_shapes(shapes: "InputShapes | tuple[int, ...] | list[tuple[int, ...]] | None") -> "InputShapes":
    """Input shapes by name, as `scheduler.tools.bench` takes them."""
    from scheduler.tools.bench.subject import UNNAMED

    if shapes is None or isinstance(shapes, dict):
        return shapes or {}
    if isinstance(shapes, tuple):
        return {UNNAMED: shapes}
    raise UsageError("several sizes without names were given", "write NAME=1x3x224x224 each: files need not have the same order")
