"""`stretch branch`: turn a model into a bundle of branches for one device."""

import re
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Meta

from stretch.cli.inputs import Device, InputSizes, Model, TrustCode, Weights, read_inputs, tell_size
from stretch.cli.interrupt import WRITER_GRACE_S
from stretch.cli.options import PANEL, Preprocessing, Rare, settings
from stretch.cli.output import Output, verb
from stretch.cli.pages import Html, check_html
from stretch.planning.config import PlanConfig
from stretch.planning.messages import as_flag

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from predictors.errors import InfeasibleError
    from stretch.api import Branched
    from stretch.capture.inputs import InputShapes
    from stretch.report.html.page import Page

#: Steps of the progress bar: import torch, load, capture, plan, transform, and the files of a typical bundle.
PHASES = 16

#: Additional steps of a refinement.
REFINING = 23

#: Heading of the options of calibration in the help.
CALIBRATION = "Options of calibration"

#: Seconds after Ctrl-C for removing unfinished files.
GRACE_S = WRITER_GRACE_S


@verb
@settings()
def branch(
    out: Output,
    *,
    model: Model,
    device: Device,
    folder: Annotated[Path | None, typer.Option("--out", help="Folder of the bundle. Default: runs/MODEL_DEVICE.")] = None,
    input_size: InputSizes = None,
    weights: Weights = "default",
    config: PlanConfig,
    design: Annotated[
        Path | None, typer.Option(help="Build this design (TOML) instead of searching for one.", rich_help_panel=PANEL)
    ] = None,
    images: Annotated[
        Path | None,
        typer.Option(help="Folder of unlabelled images (pictures or .npy) to calibrate the new network with.", rich_help_panel=CALIBRATION),
    ] = None,
    refine: Annotated[
        float | None,
        typer.Option(
            help="Minutes of refinement after calibration: gradient descent without labels, on a GPU if there is one.",
            rich_help_panel=CALIBRATION,
        ),
    ] = None,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Until --min-agreement holds, divide segments exactly and leave the stages with the largest loss unchanged.",
            rich_help_panel=CALIBRATION,
        ),
    ] = False,
    anyway: Annotated[
        bool,
        typer.Option(
            "--anyway",
            help="Write branches even if something else is recommended. A design, or options that shape one, imply it; without "
            "it, nothing is written in that case and the exit code is 4.",
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Plan only: build no model and write nothing.")] = False,
    html: Html = None,
    trust_code: TrustCode = False,
    seed: Annotated[int, Rare("Seed of random weights.")] = 0,
    image_count: Annotated[int, Meta(ge=16), Rare("Maximum number of calibration images.")] = 256,
    run_images: Annotated[
        int,
        Meta(ge=0),
        Rare("Maximum number of held-back images that the bundle's files are run on, in their planned precisions; 0 for none."),
    ] = 64,
    mapping: Annotated[
        dict[str, str],
        Rare("Delegate that stands in for a processor in that run, such as dsp=dsp (its simulator) or gpu=opencl; the CPU by default."),
    ] = MappingProxyType({}),
    budget_minutes: Annotated[
        float, Meta(ge=0.05, le=1e4), Rare("Minutes for measuring the loss of single segments, which --min-agreement plans with.")
    ] = 5.0,
    preprocessing: Preprocessing = None,
    controls: Annotated[bool, Rare("Whether the bundle has the sequential controls, which it is compared with.")] = True,
    export: Annotated[bool, Rare("Whether the bundle is written.")] = True,
) -> None:
    """Stretch a model into branches for a device's processors and write a bundle for `stretch run`."""
    from predictors.errors import InfeasibleError
    from stretch.api import branch as make

    check_html(html)
    target = (folder or Path("runs") / _folder_name(model, device)) if export and not dry_run else None
    shape = read_inputs(input_size)
    try:
        with out.progress("branching", total=PHASES if refine is None else PHASES + REFINING) as progress:
            result = make(
                model,
                device,
                out=target,
                config=config,
                design=design,
                input_shape=shape,
                weights=weights,
                seed=seed,
                images=images,
                image_count=image_count,
                refine=refine,
                run_images=run_images,
                mapping=mapping,
                repair=repair,
                budget_minutes=budget_minutes,
                preprocessing=preprocessing,
                controls=controls,
                dry_run=dry_run,
                anyway=anyway or not export,
                trust_code=trust_code,
                progress=progress,
            )
    except InfeasibleError as error:
        out.write_page(html, partial(_refused, error, model, device, shape, trust_code))
        raise
    tell_size(out, shape, result.plan.graph)
    _tell(out, result, html)
    if result.withheld:
        raise typer.Exit(InfeasibleError.exit_code)


def _tell(out: Output, result: "Branched", html: Path | None) -> None:
    """Warn, write the report, and print the plan and what was written."""
    # one list for the terminal and the JSON, including warnings of packages
    answer = out.with_warnings(result.answer(as_flag))

    def roofline() -> "tuple[str, Figure]":
        from stretch.report.prediction import roofline_figure

        plan, single = result.plan, answer.predicted
        estimate = plan.predictor.predict(plan.graph, single.best_single_processor, single.best_single_precision)
        return roofline_figure(plan.graph.name, estimate, plan.device, single.best_single_processor)

    def page(command: str) -> "Page":
        from stretch.report.plan import plan_page

        return plan_page(answer, origins=result.plan.origins, roofline=roofline if html and command else None, command=command)

    out.show(answer, page, html)


def _refused(error: "InfeasibleError", model: str, device: str, shape: "InputShapes | None", trust_code: bool, command: str) -> "Page":
    """The report of a model without a feasible design: the reasons, and the latency of the original."""
    from predictors.devices import load_device
    from stretch.planning.messages import error_spelled
    from stretch.report.prediction import refusal_page
    from stretch.stages.network import read_graph
    from stretch.stages.predict import predict_latency

    profile, graph = load_device(device), read_graph(model, shape, trust_code=trust_code).graph
    alone = predict_latency(model, graph, profile, list(profile.processors), None, warnings=[]).processors
    return refusal_page(graph.name, profile.id, error_spelled(error, as_flag), alone, command)


def _folder_name(model: str, device: str) -> str:
    """Default folder name such as ``resnet50_pixel6``; a path or a factory is reduced to a plain name."""
    parts = [Path(model.partition(":")[2] or model).name, Path(device).stem]
    return "_".join(re.sub(r"[^\w.-]+", "-", part) for part in parts)
