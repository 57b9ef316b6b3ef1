"""Search for designs of a network, or of a pair of networks, without building them."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from msgspec import Meta
from msgspec.structs import replace

from predictors.devices import DeviceProfile, load_device
from predictors.errors import StretchError, UsageError
from predictors.files import new_folder
from predictors.system import keep_freed_memory
from scheduler.progress import Progress, silent
from stretch.api.parameters import AdvancedOption, InputShape, MeasuredBlocks, Parsed, PreprocessingOption, TrustCode, Weights, read_names
from stretch.planning.config import PlanConfig

if TYPE_CHECKING:
    from stretch.evaluation.sensitivity.blocks import BlockLosses
    from stretch.planning.cost.accuracy import AccuracySource
    from stretch.planning.pareto import FrontAnswer
    from stretch.stages.network import CapturedNetwork
    from stretch.stages.together import TogetherAnswer

#: Default maximum value of alternatives, relative to the best design's.
MAX_VALUE_FACTOR = 1.2

#: Factor on the number of measured blocks, because a front has designs of every agreement and needs losses of more segments.
FRONT_FACTOR = 3

#: Default maximum number of designs; and, for a pair of networks, of designs per set of processors.
TOP, PAIR_TOP = 10, 3


class SearchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a search for designs, in addition to those of the planner."""

    pareto: Annotated[
        Sequence[str],
        typer.Option(
            help="Two objectives of the front: latency, energy, macs, agreement (with images or a measured sensitivity) and "
            "accuracy (with the predictor of a supernet). Default: latency,agreement if agreement is predicted, else latency,macs."
        ),
        Parsed(str | None, read_names),
    ] = ()
    within: Annotated[
        float | None,
        typer.Option(
            help="Instead of a front, search the best design in the objective and alternatives. Maximum value of an alternative, relative to the best, "
            "such as 1.2. Alternatives have other branches, processors or segment kinds."
        ),
    ] = None
    top: Annotated[
        int | None, typer.Option(help="Maximum number of designs. Default: 10, or for a pair 3 per set of processors.", min=1, max=100)
    ] = None
    images: Annotated[
        str | Path | None, typer.Option(help="Folder of unlabelled images (pictures or .npy) for measuring the loss of single segments.")
    ] = None
    input_shape: InputShape = None
    weights: Weights = "default"
    out: Annotated[str | Path | None, typer.Option("--out", "-o", help="New folder for the design files and the measurements.")] = None
    trust_code: TrustCode = False
    image_count: Annotated[int, Meta(ge=16), AdvancedOption("Maximum number of calibration images.")] = 96
    synthetic: Annotated[int, Meta(ge=0), AdvancedOption("Number of additional calibration images made from the network itself.")] = 0
    measured_blocks: MeasuredBlocks = None
    preprocessing: PreprocessingOption = None
    seed: Annotated[int, AdvancedOption("Seed of random weights.")] = 0

    def read(self, model: str) -> "CapturedNetwork":
        """Read a network by name; without images only its graph."""
        from stretch.stages.network import read_network

        measured = self.images is not None
        return read_network(
            model,
            self.input_shape,
            weights=self.weights if measured else "none",
            seed=self.seed,
            trust_code=self.trust_code,
            fit_statistics=measured,
        )


def search(
    model: "str | CapturedNetwork",
    device: str | Path | DeviceProfile,
    options: SearchOptions | None = None,
    *,
    config: PlanConfig | None = None,
    progress: Progress | None = None,
    **plan_options: Any,
) -> "FrontAnswer":
    """Search a Pareto front of designs, or the best design and alternatives, without building them.

    Args:
        model: A name of `stretch list models`, Python code or a file; or a captured network.
        device: Profile id, path of a profile, or a profile.
        options: Options of the search, such as ``SearchOptions(top=3)``.
        config: Constraints and objective.
        progress: Called with a short name of each next step.
        plan_options: Options of the planner by name, which override `config`.

    Raises:
        UsageError: If arguments contradict each other.
        StretchError: Or a subclass: unknown names, no images, no design, no folder to write to.
    """
    from stretch.planning.cost.accuracy import Sensitivity
    from stretch.planning.pareto import diverse_front, front

    options, progress, request = options or SearchOptions(), progress or silent, (config or PlanConfig()).replace(plan_options)
    weighed, differ = check_search(request, options)
    profile = device if isinstance(device, DeviceProfile) else load_device(device)
    request.resolve(profile)
    if isinstance(model, str):
        progress("capturing")
    network = options.read(model) if isinstance(model, str) else model
    seconds: dict[str, float] = {}
    source, losses, warnings = _accuracy_source(network, profile, request, options, progress)
    if isinstance(source, Sensitivity) and options.images is not None:
        seconds["sensitivity"] = source.on.seconds
    default_criterion = "macs" if source is None else "agreement" if source.option == "min_agreement" else "accuracy"
    progress("designs")
    began = time.perf_counter()
    if differ:
        answer = diverse_front(network.graph, profile, request, options.top or TOP, options.within or MAX_VALUE_FACTOR, source, losses)
    else:
        with keep_freed_memory():
            answer = front(network.graph, profile, request, weighed or ("latency", default_criterion), options.top or TOP, source, losses)
    seconds["search"] = round(time.perf_counter() - began, 3)
    answer = replace(answer, seconds=seconds, warnings=[*answer.warnings, *warnings])
    return answer if options.out is None else _save_answer(answer, Path(options.out), source if options.images is not None else None)


def _accuracy_source(
    network: "CapturedNetwork", profile: DeviceProfile, request: PlanConfig, options: SearchOptions, progress: Progress
) -> "tuple[AccuracySource | None, BlockLosses | None, list[str]]":
    """Return the source of the accuracy of designs, the losses of single blocks (both None if unknown), and warnings."""
    if request.accuracy:
        from stretch.planning.cost.accuracy import load_accuracy

        return load_accuracy(Path(request.accuracy), network.graph.name), None, []
    if options.images is None:
        return None, None, ["how often these designs agree with the original is not known: give `images` or `accuracy`"]
    from scheduler.bundle.preprocessing import requested_preprocessing
    from stretch.evaluation.sensitivity.blocks import BlockLosses
    from stretch.evaluation.sensitivity.source import default_count, plannable, sensitivity_of
    from stretch.stages.build import divide_images

    if not plannable(request):
        raise UsageError(
            "images say nothing of designs that all compute what the original computes, nor of other searches and of joins that widen the backbone",
            "leave out `images`",
        )
    read = requested_preprocessing(network.loaded.preprocessing, options.preprocessing, network.graph.input.shape)
    progress("reading images")
    images, synthetic = Path(options.images), options.synthetic
    divided = divide_images(images, network.captured, options.image_count, read, synthetic=synthetic, progress=progress)
    if not divided.held_back:
        raise StretchError(f"{images} has too few images for a held-back set", "give at least some dozens")
    losses = BlockLosses(network.captured, divided.fitted, progress)
    count = options.measured_blocks or FRONT_FACTOR * default_count(network.graph)
    with keep_freed_memory():
        source = sensitivity_of(network.captured, profile, request, divided, count, progress, losses)
    return source, losses, [*network.loaded.warnings, *divided.warnings]


def search_pair(
    models: tuple[str, str],
    device: str | Path | DeviceProfile,
    options: SearchOptions | None = None,
    *,
    goal: str = "makespan",
    config: PlanConfig | None = None,
    progress: Progress | None = None,
) -> "TogetherAnswer":
    """Search pairs of designs of two networks that run concurrently.

    Args:
        models: Names of both networks; the same name twice for two users of one network.
        options: Only these apply: `top` (3 by default, for each set of processors), `within` (1.2 by default), `input_shape` (of the
            first network), `out` and `trust_code`.
        goal: ``makespan``, ``latency`` (mean of both) or ``throughput``.

    Raises:
        StretchError: Or a subclass: unknown names, no design, no folder to write to.
    """
    from stretch.planning.plan import PlanningProblem
    from stretch.stages.together import GOALS, best_pair, candidates, together_answer

    objective = next((known for known in GOALS if known == goal), None)
    if objective is None:
        raise UsageError(f"`{goal}` is no objective of a pair", f"one of {', '.join(GOALS)}")
    options, progress, request = options or SearchOptions(), progress or silent, config or PlanConfig()
    check_search(request, SearchOptions(out=options.out))
    profile = device if isinstance(device, DeviceProfile) else load_device(device)
    request.resolve(profile)
    times = [time.perf_counter()]
    from stretch.stages.network import read_network

    graphs = []
    for name, shape in zip(models, (options.input_shape, None), strict=True):
        progress(f"capturing {name}")
        graphs.append(read_network(name, shape, weights="none", trust_code=options.trust_code, fit_statistics=False).graph)
    times.append(time.perf_counter())
    progress("designs")
    limits = options.top or PAIR_TOP, options.within or MAX_VALUE_FACTOR
    one, other = (candidates(graph, profile, request, *limits) for graph in graphs)
    times.append(time.perf_counter())
    progress("pairs")
    processors = PlanningProblem.of(graphs[0], profile, request).config.processors
    best = best_pair(one, other, profile, processors, objective, progress=progress)
    times.append(time.perf_counter())
    phases = ("capture", "search", "pairs")
    answer = together_answer(best, {name: round(times[i + 1] - times[i], 3) for i, name in enumerate(phases)})
    return answer if options.out is None else _save_answer(answer, Path(options.out))


def check_search(request: PlanConfig, options: SearchOptions) -> tuple[tuple[str, ...], bool]:
    """Refuse impossible searches and folders before any work begins.

    Returns:
        The criteria of a front, empty for the default, and whether to search alternatives instead of a front.
    """
    from stretch.planning.pareto import check_criteria

    weighed = check_criteria(tuple(options.pareto)) if options.pareto else ()
    differ = options.within is not None or (not weighed and request.objective not in ("latency", "accuracy"))
    only, with_images = "give one of the two", options.images is not None
    front = "leave out `images`, or ask for `pareto=latency,agreement`"
    alternatives = "`images` applies to a front, not to alternatives of the best design"
    other_objective = f"a front has no objective such as {request.objective}"
    for wrong, message, hint in (
        (weighed and differ, "`pareto` searches a front, `within` alternatives of the best design", only),
        (weighed and request.objective != "latency", other_objective, "leave out `pareto` or `objective`"),
        (with_images and differ, alternatives, "leave out `images`"),
        (with_images and request.accuracy, "`images` and `accuracy` both predict the accuracy of designs", only),
        (options.synthetic and not with_images, "images made from the network only supplement others, and there are none", "give `images`"),
        (with_images and weighed and "agreement" not in weighed, f"images say nothing of {','.join(weighed)}", front),
    ):
        if wrong:
            raise UsageError(message, hint)
    for name, sources in (("agreement", "`images` or `accuracy`"), ("accuracy", "`accuracy`")):
        if name in weighed and not with_images and not request.accuracy:
            raise UsageError(f"nothing predicts the {name} of designs", f"give {sources}, or ask for `pareto=latency,macs`")
    for name in ("min_accuracy", "min_agreement", "latency_budget"):
        if getattr(request, name) is not None:
            raise UsageError(
                f"`{name}` does not limit the search of a front", f"leave `{name}` out, and choose a design of the front that meets it"
            )
    if options.images is not None and not Path(options.images).is_dir():
        raise StretchError(f"there is no folder {options.images} with images", "give a folder of pictures or .npy arrays")
    out = None if options.out is None else Path(options.out)
    if out is not None and (out.is_file() or (out.is_dir() and any(out.iterdir()))):
        raise UsageError(f"{out} is no new or empty folder", "give another one")
    return weighed, differ


def _save_answer(answer: Any, folder: Path, source: "AccuracySource | None" = None) -> Any:
    """Write the design files of a search and a measured sensitivity; return the answer with their paths."""
    from stretch.planning.cost.accuracy import Sensitivity, save_accuracy
    from stretch.planning.design.branch_design import design_to_toml

    rows = []
    with new_folder(folder, "designs") as staged:
        for number, row in enumerate(answer.designs, 1):
            name = f"design_{getattr(row, 'name', number)}.toml"
            if row.design is not None:
                (staged / name).write_text(design_to_toml(row.design))
            rows.append(row if row.design is None else replace(row, file=str(folder / name)))
        answer = replace(answer, designs=rows)
        if isinstance(source, Sensitivity):
            save_accuracy(staged / "sensitivity.json", source)
            answer = replace(answer, sensitivity_file=str(folder / "sensitivity.json"))
    return answer
