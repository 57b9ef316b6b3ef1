"""`stretch search`: search Pareto fronts of designs, and alternative designs."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from predictors.devices import load_device
from predictors.errors import UsageError
from stretch.api.parameters import AdvancedOption, Device, Model
from stretch.api.searching import SearchOptions, check_search, search_pair
from stretch.api.searching import search as search_designs
from stretch.cli.output import Output, import_torch, only_flags
from stretch.cli.pages import Html, check_picture
from stretch.cli.planner import FrontPlan

#: Parameters that apply to a pair of networks.
PAIR = (
    "model other device top within change config_file input_shape out trust_code alpha beta kinds lossless objective precision processors"
)


class PairOptions(msgspec.Struct, frozen=True, kw_only=True):
    """A second network, or a picture of the front of one."""

    other: Annotated[
        str | None,
        typer.Option(
            "--with",
            help="A second network that runs concurrently: search pairs of designs, from candidates for every set of processors.",
        ),
    ] = None
    plot: Annotated[Path | None, typer.Option("--plot", help="Plot the front into this .svg or .png file.")] = None
    pair_goal: Annotated[
        str | None, AdvancedOption("Objective of a pair of networks: makespan (the default), latency (mean of both) or throughput.")
    ] = None


def search(
    out: Output, model: Model, device: Device, config: FrontPlan, options: SearchOptions, pair: PairOptions, html: Html = None
) -> None:
    """Search for designs without building them: a Pareto front, or the best design and alternatives."""
    plot = pair.plot
    if pair.other is not None:
        only_flags("a pair of networks", PAIR)
        if config.accuracy:
            raise UsageError("accuracy is about the designs of one network", "leave it out, or leave out --with")
        from stretch.report.front import together_page
        from stretch.stages.together import GOALS

        with out.progress("searching") as progress:
            models, goal = (str(model), pair.other), pair.pair_goal or GOALS[0]
            best = search_pair(models, device, options, goal=goal, config=config, progress=progress)
        out.show(best, together_page)
        return
    if pair.pair_goal is not None:
        raise UsageError("pair_goal is an objective for two networks", "name the second one with --with")
    _, differ = check_search(config, options)
    if plot is not None:
        if differ:
            raise UsageError("--plot applies to a front, not to alternatives of the best design", "leave out --plot")
        check_picture(plot, [])
    profile = load_device(str(device))
    config.resolve(profile)
    import_torch()
    from stretch.report.front import front_figure, front_page
    from stretch.report.prediction import write_figure

    with out.progress("searching") as progress:
        progress("capturing")
        network = options.read(str(model))
        out.tell_size(options.input_shape, network.graph)
        answer = search_designs(network, profile, options, config=config, progress=progress)
    if plot is not None:
        write_figure(front_figure(answer), plot)
    out.show(answer, front_page, html)
