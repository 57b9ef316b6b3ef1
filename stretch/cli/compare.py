"""`stretch compare`: compare bundles, plans, searches and runs by their figures."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from predictors.errors import UsageError
from stretch.api.parameters import InputShape, TrustCode, device_option
from stretch.cli.output import Output, no_flags
from stretch.cli.pages import Html
from stretch.cli.planner import Plan
from stretch.planning.config import PlanConfig

if TYPE_CHECKING:
    from predictors.devices import DeviceProfile
    from predictors.graph import OpGraph
    from stretch.report.compared import ComparedRow


def compare(
    out: Output,
    *,
    what: Annotated[
        list[str],
        typer.Argument(help="Bundle folders, JSON output of `branch`, `search` or `run`, or models, which are planned for each device."),
    ],
    device: Annotated[
        list[str] | None,
        device_option("Id or path of a device profile that models are planned for; repeatable."),
    ] = None,
    config: Plan,
    inputs: InputShape = None,
    html: Html = None,
    trust_code: TrustCode = False,
) -> None:
    """Compare bundles, plans, searches and runs in one table."""
    from predictors.devices import load_device
    from scheduler.bundle.load import load_bundle
    from stretch.report.compared import CompareAnswer, bundle_row, rows_of_file, warnings_of
    from stretch.report.comparison import comparison_page
    from stretch.stages.network import read_graph

    devices, models = device or [], [name for name in what if not _is_result(name)]
    if models and not devices:
        raise UsageError(f"{models[0]} is no bundle and no file of a result", "give --device D to have it planned as a model")
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
            elif _is_result(name):
                rows += rows_of_file(Path(name))
            else:
                rows += _model_rows(read_graph(name, shape=inputs, trust_code=trust_code).graph, profiles, config)
    out.show(CompareAnswer(rows=rows, warnings=warnings_of(rows)), comparison_page, html)


def _is_result(name: str) -> bool:
    """Return whether a word names a bundle or a result file, not a model."""
    return Path(name).is_dir() or name.endswith(".json")


def _model_rows(graph: "OpGraph", profiles: "list[DeviceProfile]", request: PlanConfig) -> "list[ComparedRow]":
    """Return the rows of a model's plans for all devices; without a feasible design the row has the reason."""
    from predictors.errors import InfeasibleError
    from stretch.planning.plan import plan
    from stretch.report.compared import plan_row, refused_row

    rows = []
    for profile in profiles:
        label = f"{graph.name} on {profile.id}"
        try:
            rows.append(plan_row(label, plan(graph, profile, request)))
        except InfeasibleError as error:
            rows.append(refused_row(label, graph.name, profile.id, error.message))
    return rows
