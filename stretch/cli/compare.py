"""`stretch compare`: compare bundles, plans, searches and runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stretch.cli.options import planner_options
from stretch.cli.output import Output, verb
from stretch.cli.pages import Html, check_html, write_html
from stretch.planning.config import PlanConfig

if TYPE_CHECKING:
    from predictors.devices import DeviceProfile
    from stretch.comparison.rows import ComparedRow


@verb
@planner_options
def compare(
    out: Output,
    *,
    what: Annotated[
        list[str],
        typer.Argument(help="Bundle folders, JSON output of `branch`, `search` or `run`, or models, which are planned for each device."),
    ],
    device: Annotated[
        list[str] | None, typer.Option(help="Id or path of a device profile that models are planned for; repeatable.")
    ] = None,
    request: PlanConfig,
    html: Html = None,
    trust_code: Annotated[bool, typer.Option("--trust-code", help="Allow file.py:factory to execute that file.")] = False,
) -> None:
    """Compare bundles, plans, searches and runs in one table."""
    from predictors.devices import load_device
    from predictors.errors import UsageError
    from stretch.comparison.rows import CompareAnswer, warnings_of
    from stretch.report.comparison import print_comparison
    from stretch.report.html.comparison_page import comparison_page

    check_html(html)
    models = [name for name in what if not _is_result(name)]
    if models and not device:
        raise UsageError(f"{models[0]} is no bundle and no file of a result", "give --device D to have it planned as a model")
    if device and not models:
        raise UsageError("--device is for models, and none is compared", "leave it out, or name a model")
    profiles = [load_device(name) for name in device or []]
    rows: list[ComparedRow] = []
    with out.progress("comparing", total=len(what)) as step:
        for name in what:
            step(name)
            rows += _result_rows(name) if _is_result(name) else _model_rows(name, profiles, request, trust_code)
    for warning in warnings_of(rows):
        out.warn(warning)
    answer = CompareAnswer(rows=rows, warnings=out.warnings)
    write_html(out, html, lambda command: comparison_page(answer, command))
    out.emit(answer, lambda console: print_comparison(console, answer))


def _is_result(name: str) -> bool:
    """Whether a word names a bundle or a file rather than a model."""
    return Path(name).is_dir() or name.endswith(".json")


def _result_rows(name: str) -> "list[ComparedRow]":
    from scheduler.bundle.load import load_bundle
    from stretch.comparison.files import rows_of_file
    from stretch.comparison.rows import bundle_row

    path = Path(name)
    return [bundle_row(name.rstrip("/"), load_bundle(path))] if path.is_dir() else list(rows_of_file(path))


def _model_rows(name: str, profiles: "list[DeviceProfile]", request: PlanConfig, trust_code: bool) -> "list[ComparedRow]":
    """Plan a model for each device; a device without a feasible design gets a row with the reason."""
    from predictors.errors import InfeasibleError
    from stretch.cli.train import import_torch

    import_torch()
    from stretch.comparison.rows import plan_row, refused_row
    from stretch.planning.plan import plan
    from stretch.planning.sentences import as_flag, error_spelled
    from stretch.stages.network import read_graph

    graph = read_graph(name, trust_code=trust_code).graph
    rows = []
    for profile in profiles:
        label = f"{graph.name} on {profile.id}"
        try:
            rows.append(plan_row(label, plan(graph, profile, request).answer()))
        except InfeasibleError as error:
            rows.append(refused_row(label, graph.name, profile.id, error_spelled(error, as_flag).message))
    return rows
