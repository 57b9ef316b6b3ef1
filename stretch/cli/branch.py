"""`stretch branch`: turn a model into a bundle of branches for one device."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from stretch.api.main_job import BranchOptions
from stretch.api.main_job import branch as branch_model
from stretch.api.parameters import AdvancedOption, Device, Model, input_words
from stretch.cli.interrupt import WRITER_GRACE_S
from stretch.cli.output import COMMAND_LINE, Output
from stretch.cli.pages import Html
from stretch.cli.planner import Plan
from stretch.planning.messages import command_line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from predictors.errors import InfeasibleError
    from stretch.report.html.page import Page
    from stretch.stages.branched import Branched

#: Steps of the progress bar: import torch, load, capture, plan, transform, and the files of a typical bundle.
PHASES = 16

#: Additional steps of a refinement.
REFINING = 23

#: Seconds after Ctrl-C for removing unfinished files.
GRACE_S = WRITER_GRACE_S


class BranchFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Files to write."""

    folder: Annotated[Path | None, typer.Option("--out", "-o", help="Folder of the bundle. Default: runs/MODEL_DEVICE.")] = None
    html: Html = None
    export: Annotated[bool, AdvancedOption("Whether the bundle is written.")] = True


def branch(out: Output, model: Model, device: Device, config: Plan, options: BranchOptions, files: BranchFiles) -> None:
    """Split a model into branches for a device's processors, and write a bundle."""
    from predictors.errors import InfeasibleError

    model, device = str(model), str(device)
    target = (files.folder or Path("runs") / _folder_name(model, device)) if files.export and not options.dry_run else None
    try:
        with out.progress("branching", total=PHASES + REFINING * (options.refine is not None)) as progress:
            result = branch_model(model, device, options, out=target, config=config, progress=progress)
    except InfeasibleError as error:
        if files.html is not None:
            out.write_page(files.html, _report_infeasible(error, model, device, options))
        raise
    out.tell_size(options.input_shape, result.plan.graph)
    planned = result.plan

    def roofline() -> "tuple[str, Figure]":
        from stretch.report.prediction import roofline_figure

        return roofline_figure(planned.graph.name, planned.best_single, planned.device, planned.best_single.processor)

    from stretch.report.plan import plan_page

    following = _following(result, model, options)
    drawn = roofline if files.html else None
    out.show(result, lambda built: plan_page(planned, built, roofline=drawn, following=following), files.html, result.to_json())
    if result.withheld:
        raise typer.Exit(InfeasibleError.exit_code)


def _following(result: "Branched", model: str, options: BranchOptions) -> list[str]:
    """Return lines with the next command: run the bundle, build it, or find a device where branches are faster."""
    from stretch.planning.cost.compare import BRANCHED, NO_CLEAR_WINNER

    beaten = result.plan.recommended not in (BRANCHED, NO_CLEAR_WINNER)
    if result.bundle is not None:
        first = command_line("run", result.bundle, *(["--recommended"] if beaten else []))
    elif result.withheld:
        return ["Nothing was written: branches are not recommended, and --only-if-faster was given."]
    elif beaten:
        first = command_line("advise", model, *input_words(options.input_shape), *(["--trust-code"] if options.trust_code else []))
    else:
        first = command_line(*(word for word in COMMAND_LINE.get() if word != "--dry-run"))
    return [f"Next: {first}", "      --details shows the design and its timeline"]


def _report_infeasible(error: "InfeasibleError", model: str, device: str, options: BranchOptions) -> "Page":
    """Return the report of a model without a feasible design: the reasons, and the latency of the original."""
    from predictors.devices import load_device
    from stretch.report.prediction import refusal_page
    from stretch.stages.network import read_graph
    from stretch.stages.predict import predict_latency

    profile, graph = load_device(device), read_graph(model, options.input_shape, trust_code=options.trust_code).graph
    alone = predict_latency(model, graph, profile, list(profile.processors), None).processors
    return refusal_page(graph.name, profile.id, error, alone)


def _folder_name(model: str, device: str) -> str:
    """Return the default folder name such as ``resnet50_pixel6``; a path or a factory is reduced to a plain name."""
    parts = [Path(model.partition(":")[2] or model).name, Path(device).stem]
    return "_".join(re.sub(r"[^\w.-]+", "-", part) for part in parts)
