"""`stretch search`: search Pareto fronts of designs, and alternative designs."""

import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import Meta

from predictors.errors import StretchError, UsageError
from stretch.cli.inputs import InputSizes, read_inputs, tell_size
from stretch.cli.options import Preprocessing, Rare, settings
from stretch.cli.output import Output, verb
from stretch.cli.pages import Html, check_html
from stretch.planning.config import PlanConfig
from stretch.planning.sentences import FLAGS, Mention, as_flag

if TYPE_CHECKING:
    from collections.abc import Mapping

    from predictors.devices import DeviceProfile
    from scheduler.progress import Progress
    from stretch.capture.inputs import InputShapes
    from stretch.planning.cost.accuracy import AccuracySource
    from stretch.planning.pareto import FrontAnswer
    from stretch.planning.together import TogetherAnswer
    from stretch.stages.network import Network


#: Default factor of the best design's value that alternatives may have.
WITHIN = 1.2

#: Default number of designs; for a pair of networks per set of processors.
TOP, PAIR_TOP = 10, 3


@verb
@settings(FLAGS - {"min_agreement"})
def search(
    out: Output,
    *,
    model: Annotated[
        str,
        typer.Argument(help="Name of `stretch list models`, package.module:factory, file.py:factory, or an .onnx, .pt2 or .tflite file."),
    ],
    device: Annotated[str, typer.Option(help="Id of a profile (see `stretch list devices`), or the path of one.")],
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
    request: PlanConfig,
    images: Annotated[
        Path | None, typer.Option(help="Folder of unlabelled images (pictures or .npy) for measuring the loss of single segments.")
    ] = None,
    input_size: InputSizes = None,
    weights: Annotated[str, typer.Option(help="default (trained weights where available), none (random weights), or a file.")] = "default",
    folder: Annotated[Path | None, typer.Option("--out", help="New folder for the design files and the measurements.")] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Plot the front into this .svg or .png file.")] = None,
    html: Html = None,
    trust_code: Annotated[bool, typer.Option("--trust-code", help="Allow file.py:factory to execute that file.")] = False,
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
    from msgspec.structs import replace

    from predictors.devices import load_device

    check_html(html)
    if other is not None:
        _check_pair(request, pareto, images, plot, html, folder)
        names = (model, other)
        _pair(
            out,
            names,
            device,
            request,
            pair_goal,
            (top or PAIR_TOP, within or WITHIN),
            read_inputs(input_size),
            folder,
            trust_code=trust_code,
        )
        return
    if pair_goal is not None:
        raise UsageError("pair_goal says what two networks are best in", "name the second one with --with")
    weighed = _weighed(pareto)
    differ = within is not None or (not weighed and request.objective not in ("latency", "accuracy"))
    _check(request, weighed, images, folder, plot)
    _check_mode(request, weighed, within, images, plot)
    profile, shape = load_device(device), read_inputs(input_size)
    request.checked(profile)
    from stretch.cli.output import import_torch

    import_torch()
    from stretch.planning.pareto import front, front_answer, several
    from stretch.report.front import front_figure, front_page
    from stretch.report.prediction import write_figure
    from stretch.stages.network import read_network

    seconds: dict[str, float] = {}
    with out.progress("searching") as progress:
        progress("capturing")
        network = read_network(model, shape, weights="none" if images is None else weights, seed=seed, trust_code=trust_code)
        source = _source(network, profile, request, images, (image_count, budget_minutes * 60), preprocessing, progress, seconds)
        tell_size(out, shape, network.graph)
        usual = "macs" if source is None else "agreement" if source.option == "min_agreement" else "accuracy"
        began = time.perf_counter()
        progress("designs")
        if differ:
            found_front = several(network.graph, profile, request, top or TOP, within or WITHIN, source)
        else:
            found_front = front(network.graph, profile, request, weighed or ("latency", usual), top or TOP, source)
        seconds["search"] = round(time.perf_counter() - began, 3)
        answer = front_answer(found_front, seconds)
    if source is None:
        out.warn("how often these designs agree with the original is not known: give --images DIR, or --set accuracy=FILE")
    for warning in network.loaded.warnings if images is not None else ():
        out.warn(warning)
    if folder is not None:
        answer = _save(answer, folder, source if images is not None else None)
    if plot is not None:
        write_figure(front_figure(answer), plot)
    answer = replace(answer, warnings=out.warnings)
    out.show(answer, lambda command: front_page(answer, command), html)


def _pair(
    out: Output,
    models: tuple[str, str],
    device: str,
    request: PlanConfig,
    goal: str | None,
    limits: tuple[int, float],
    shape: "InputShapes | None",
    folder: Path | None,
    *,
    trust_code: bool,
) -> None:
    """Search pairs of designs of two networks."""
    from msgspec.structs import replace

    from predictors.devices import load_device
    from stretch.planning.together import GOALS

    if goal not in (None, *GOALS):
        raise UsageError(f"`{goal}` is no objective of a pair", f"one of {', '.join(GOALS)}")
    profile = load_device(device)
    request.checked(profile)
    from stretch.cli.output import import_torch

    import_torch()
    from stretch.report.front import together_page
    from stretch.stages.together import pair_of

    with out.progress("searching") as progress:
        answer = pair_of(models, profile, request, goal or GOALS[0], *limits, shape=shape, trust_code=trust_code, progress=progress)
    if folder is not None:
        answer = _save_pair(answer, folder)
    answer = replace(answer, warnings=out.warnings)
    out.show(answer, lambda command: together_page(answer, command))


def _check_pair(
    request: PlanConfig, pareto: str | None, images: Path | None, plot: Path | None, html: Path | None, folder: Path | None
) -> None:
    """Refuse flags that do not apply to a pair."""
    for name, flag_value in (
        ("--pareto", pareto),
        ("--images", images),
        ("--plot", plot),
        ("--html", html),
        ("accuracy", request.accuracy or None),
    ):
        if flag_value is not None:
            raise UsageError(f"{name} is about the designs of one network", "leave it out, or leave out --with")
    _check(request, (), None, folder, None)


def _weighed(pareto: str | None) -> tuple[str, ...]:
    """Objectives of `--pareto`, or none."""
    from stretch.planning.pareto import check_weighed

    return () if pareto is None else check_weighed(tuple(name.strip() for name in pareto.split(",")))


def _check_mode(request: PlanConfig, weighed: tuple[str, ...], within: float | None, images: Path | None, plot: Path | None) -> None:
    """Refuse combinations of flags of a front with flags of alternatives."""
    if weighed and within is not None:
        raise UsageError("--pareto searches a front, --within alternatives of the best design", "give one of the two")
    if weighed and request.objective != "latency":
        raise UsageError(f"a front has no objective such as {request.objective}", "leave out --pareto or --objective")
    differ = within is not None or (not weighed and request.objective not in ("latency", "accuracy"))
    for name, flag_value in (("--images", images), ("--plot", plot)):
        if differ and flag_value is not None:
            raise UsageError(f"{name} applies to a front, not to alternatives of the best design", f"leave out {name}")


def _check(request: PlanConfig, weighed: tuple[str, ...], images: Path | None, folder: Path | None, plot: Path | None) -> None:
    """Refuse requests that cannot be answered or written, before the search."""
    from stretch.cli.predict import check_picture

    if images is not None and request.accuracy:
        raise UsageError("--images and accuracy both predict the accuracy of designs", "give one of the two")
    if images is not None and weighed and "agreement" not in weighed:
        raise UsageError(f"images say nothing of {','.join(weighed)}", "leave out --images, or ask for --pareto latency,agreement")
    for name in ("agreement", "accuracy"):
        if name in weighed and images is None and not request.accuracy:
            what = "--images DIR or --set accuracy=FILE" if name == "agreement" else "--set accuracy=FILE"
            raise UsageError(f"nothing predicts the {name} of designs", f"give {what}, or ask for --pareto latency,macs")
    for name in ("min_accuracy", "min_agreement", "latency_budget"):
        if getattr(request, name) is not None:
            raise UsageError(
                f"what is searched for is not bounded by {as_flag(Mention(name))}", "take the design that keeps it from the front"
            )
    if images is not None and not images.is_dir():
        raise StretchError(f"there is no folder {images} with images", "give a folder of pictures or .npy arrays with --images")
    if folder is not None and (folder.is_file() or (folder.is_dir() and any(folder.iterdir()))):
        raise UsageError(f"--out {folder} is no new or empty folder", "give another one")
    if plot is not None:
        check_picture(plot, [])


def _source(
    network: "Network",
    profile: "DeviceProfile",
    request: PlanConfig,
    images: Path | None,
    limits: tuple[int, float],
    requested: "Mapping[str, Any] | None",
    progress: "Progress",
    seconds: dict[str, float],
) -> "AccuracySource | None":
    """The predictor of the designs' accuracy, if any."""
    if request.accuracy:
        from stretch.planning.cost.accuracy_file import load_accuracy

        return load_accuracy(Path(request.accuracy), network.graph.name)
    if images is None:
        return None
    from scheduler.bundle.preprocessing import requested_preprocessing
    from stretch.sensitivity.source import plannable, sensitivity_of
    from stretch.stages.build import divide_images

    if not plannable(request):
        raise UsageError(
            "images say nothing of designs that all compute what the original computes, nor of other searches and of joins that widen the backbone",
            "leave out --images",
        )
    count, budget_s = limits
    preprocessing = requested_preprocessing(network.loaded.preprocessing, requested, network.graph.input.shape)
    progress("reading images")
    divided = divide_images(images, network.captured, count, preprocessing)
    for warning in divided.warnings:
        warnings.warn(warning, stacklevel=1)  # which `verb` prints as warnings
    if not divided.held_back:
        raise StretchError(f"{images} has too few images for a held-back set", "give at least some dozens")
    source = sensitivity_of(network.captured, profile, request, divided.fitted, divided.held_back, budget_s, progress)
    seconds["sensitivity"] = source.on.seconds
    return source


def _save_pair(answer: "TogetherAnswer", folder: Path) -> "TogetherAnswer":
    """Write the design files of the networks that branch."""
    from msgspec.structs import replace

    from stretch.planning.design.branch_design import design_to_toml

    rows = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for number, row in enumerate(answer.designs, 1):
            file = folder / f"design_{number}.toml"
            if row.design is not None:
                file.write_text(design_to_toml(row.design))
            rows.append(row if row.design is None else replace(row, file=str(file)))
    except OSError as error:
        raise StretchError(f"cannot write to {folder}: {error.strerror}", "choose a writable folder with --out") from error
    return replace(answer, designs=rows)


def _save(answer: "FrontAnswer", folder: Path, source: "AccuracySource | None") -> "FrontAnswer":
    """Write the design files and the measurements."""
    from msgspec.structs import replace

    from stretch.planning.cost.accuracy_file import save_accuracy
    from stretch.planning.cost.sensitivity import Sensitivity
    from stretch.planning.design.branch_design import design_to_toml

    rows = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for row in answer.designs:
            file = folder / f"design_{row.name}.toml"
            file.write_text(design_to_toml(row.design))
            rows.append(replace(row, file=str(file)))
    except OSError as error:
        raise StretchError(f"cannot write to {folder}: {error.strerror}", "choose a writable folder with --out") from error
    file = None
    if isinstance(source, Sensitivity):
        file = folder / "sensitivity.json"
        save_accuracy(file, source)
    return replace(answer, designs=rows, sensitivity_file=str(file) if file else None)
