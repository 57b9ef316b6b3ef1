"""`stretch search`: search Pareto fronts of designs, and alternative designs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from predictors.devices import load_device
from predictors.errors import UsageError
from stretch.api.parameters import AdvancedOption
from stretch.api.verbs import MAX_VALUE_FACTOR, PAIR_TOP, check_search, search_pair
from stretch.api.verbs import search as search_designs
from stretch.cli.options import FLAGS, Call, calls, settings
from stretch.cli.output import Output, import_torch, only_flags, verb
from stretch.cli.pages import Html, check_picture

#: Parameters that a pair of networks takes.
PAIR = "model other device top within change config_file input_shape folder trust_code alpha beta kinds lossless objective precision processors"


@verb
@settings(FLAGS - {"min_agreement"})
@calls(search_designs)
def search(
    out: Output,
    run: Call,
    other: Annotated[
        str | None,
        typer.Option(
            "--with",
            help="A second network that runs concurrently: search pairs of designs, from candidates for every set of processors.",
        ),
    ] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Plot the front into this .svg or .png file.")] = None,
    html: Html = None,
    pair_goal: Annotated[
        str | None, AdvancedOption("Objective of a pair of networks: makespan (the default), latency (mean of both) or throughput.")
    ] = None,
) -> None:
    """Search for designs without building them: a Pareto front, or the best design and alternatives."""
    from stretch.planning.pareto import check_criteria

    request = run.keywords
    if other is not None:
        only_flags("a pair of networks", PAIR)
        _pair(out, other, pair_goal, request)
        return
    if pair_goal is not None:
        raise UsageError("pair_goal is an objective for two networks", "name the second one with --with")
    config, images = request["config"], request["images"]
    weighed = check_criteria(tuple(request["pareto"])) if request["pareto"] else ()
    differ = request["within"] is not None or (not weighed and config.objective not in ("latency", "accuracy"))
    check_search(config, weighed, images=images, out=request["out"], differ=differ)
    if plot is not None:
        if differ:
            raise UsageError("--plot applies to a front, not to alternatives of the best design", "leave out --plot")
        check_picture(plot, [])
    profile = load_device(request["device"])
    config.resolve(profile)
    import_torch()
    from stretch.report.front import front_figure, front_page
    from stretch.report.prediction import write_figure
    from stretch.stages.network import read_network

    with out.progress("searching") as progress:
        progress("capturing")
        # without images only the graph is read
        weights = "none" if images is None else request["weights"]
        shape, options = request["input_shape"], {name: request[name] for name in ("seed", "trust_code") if name in request}
        network = read_network(request["model"], shape, weights=weights, fit_statistics=images is not None, **options)
        out.tell_size(shape, network.graph)
        answer = run(model=network, device=profile, progress=progress)
    if plot is not None:
        write_figure(front_figure(answer), plot)
    out.show(answer, front_page, html)


def _pair(out: Output, other: str, goal: str | None, request: Mapping[str, Any]) -> None:
    """Search pairs of designs of two networks."""
    from stretch.stages.together import GOALS

    if request["config"].accuracy:
        raise UsageError("accuracy is about the designs of one network", "leave it out, or leave out --with")
    options = {name: request[name] for name in ("device", "config", "input_shape", "out", "trust_code")}
    limits = {"top": request["top"] or PAIR_TOP, "within": request["within"] or MAX_VALUE_FACTOR}
    with out.progress("searching") as progress:
        answer = search_pair((request["model"], other), goal=goal or GOALS[0], progress=progress, **limits, **options)
    from stretch.report.front import together_page

    out.show(answer, together_page)
