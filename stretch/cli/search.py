"""`stretch search`: search Pareto fronts of designs, and alternative designs."""

from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec import Meta

from predictors.devices import load_device
from predictors.errors import UsageError
from stretch.cli.inputs import Device, InputSizes, Model, TrustCode, Weights, read_inputs, tell_size
from stretch.cli.options import Preprocessing, Rare, settings
from stretch.cli.output import Output, import_torch, only_flags, verb
from stretch.cli.pages import Html, check_html, check_picture
from stretch.planning.config import PlanConfig
from stretch.planning.messages import FLAGS

#: Default factor of the best design's value that alternatives may have.
WITHIN = 1.2

#: Default number of designs; for a pair of networks per set of processors.
TOP, PAIR_TOP = 10, 3

#: Parameters that a pair of networks takes.
PAIR = (
    "model other device top within change config_file input_size folder trust_code alpha beta kinds lossless objective precision processors"
)


@verb
@settings(FLAGS - {"min_agreement"})
def search(
    out: Output,
    *,
    model: Model,
    device: Device,
    pareto: Annotated[
        str | None,
        typer.Option(
            help="Two or three objectives of the front: latency, energy, macs, memory, agreement (with images or a measured sensitivity) and "
            "accuracy (with the predictor of a supernet). Default: latency,agreement if agreement is predicted, else latency,macs."
        ),
    ] = None,
    within: Annotated[
        float | None,
        typer.Option(
            help="Instead of a front, search the best design in the objective, and alternatives with other branches, processors or segment kinds "
            "whose value is at most this factor times the best one, such as 1.2."
        ),
    ] = None,
    other: Annotated[
        str | None,
        typer.Option(
            "--with",
            help="A second network that runs concurrently: search pairs of designs, from candidates for every set of processors.",
        ),
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(help="Maximum number of designs. Default: 10, or for a pair 3 per set of processors.", min=1, max=100),
    ] = None,
    config: PlanConfig,
    images: Annotated[
        Path | None, typer.Option(help="Folder of unlabelled images (pictures or .npy) for measuring the loss of single segments.")
    ] = None,
    input_size: InputSizes = None,
    weights: Weights = "default",
    folder: Annotated[Path | None, typer.Option("--out", help="New folder for the design files and the measurements.")] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Plot the front into this .svg or .png file.")] = None,
    html: Html = None,
    trust_code: TrustCode = False,
    pair_goal: Annotated[
        str | None, Rare("Objective of a pair of networks: makespan (the default), latency (mean of both) or throughput.")
    ] = None,
    image_count: Annotated[int, Meta(ge=16), Rare("Maximum number of calibration images.")] = 96,
    budget_minutes: Annotated[
        float, Meta(ge=0.05, le=1e4), Rare("Minutes for measurements; a measurement in progress is completed.")
    ] = 5.0,
    preprocessing: Preprocessing = None,
    seed: Annotated[int, Rare("Seed of random weights.")] = 0,
) -> None:
    """Search a Pareto front of designs, or the best design and alternatives, without building them."""
    from stretch.api.verbs import check_search
    from stretch.api.verbs import search as search_designs
    from stretch.planning.pareto import check_weighed

    check_html(html)
    shape = read_inputs(input_size)
    if other is not None:
        only_flags("a pair of networks", PAIR)
        options = {"top": top or PAIR_TOP, "within": within or WITHIN, "input_shape": shape, "out": folder, "trust_code": trust_code}
        _pair(out, (model, other), device, config, pair_goal, options)
        return
    if pair_goal is not None:
        raise UsageError("pair_goal says what two networks are best in", "name the second one with --with")
    weighed = () if pareto is None else check_weighed(tuple(name.strip() for name in pareto.split(",")))
    differ = within is not None or (not weighed and config.objective not in ("latency", "accuracy"))
    check_search(config, weighed, images=images, out=folder, differ=differ)
    if plot is not None:
        if differ:
            raise UsageError("--plot applies to a front, not to alternatives of the best design", "leave out --plot")
        check_picture(plot, [])
    profile = load_device(device)
    config.checked(profile)
    import_torch()
    from stretch.report.front import front_figure, front_page
    from stretch.report.prediction import write_figure
    from stretch.stages.network import read_network

    with out.progress("searching") as progress:
        progress("capturing")
        # without images only the graph is read
        weights = "none" if images is None else weights
        network = read_network(model, shape, weights=weights, seed=seed, trust_code=trust_code, settled=images is not None)
        tell_size(out, shape, network.graph)
        answer = search_designs(
            network,
            profile,
            pareto=weighed,
            within=within,
            top=top or TOP,
            config=config,
            images=images,
            image_count=image_count,
            budget_minutes=budget_minutes,
            preprocessing=preprocessing,
            out=folder,
            progress=progress,
        )
    if plot is not None:
        write_figure(front_figure(answer), plot)
    answer = out.with_warnings(answer)
    out.show(answer, lambda command: front_page(answer, command), html)


def _pair(out: Output, models: tuple[str, str], device: str, config: PlanConfig, goal: str | None, options: dict[str, Any]) -> None:
    """Search pairs of designs of two networks."""
    from stretch.api.verbs import check_search
    from stretch.planning.together import GOALS

    if config.accuracy:
        raise UsageError("accuracy is about the designs of one network", "leave it out, or leave out --with")
    check_search(config, (), out=options["out"])
    profile = load_device(device)
    config.checked(profile)
    if goal not in (None, *GOALS):
        raise UsageError(f"`{goal}` is no objective of a pair", f"one of {', '.join(GOALS)}")
    import_torch()
    from stretch.api.verbs import search_pair
    from stretch.report.front import together_page

    with out.progress("searching") as progress:
        answer = search_pair(models, profile, goal=goal or GOALS[0], config=config, progress=progress, **options)
    answer = out.with_warnings(answer)
    out.show(answer, lambda command: together_page(answer, command))
