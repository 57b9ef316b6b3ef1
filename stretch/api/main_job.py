"""The main job: from a model and a device to a branched network and, on request, a bundle."""

import dataclasses
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from msgspec import Meta
from msgspec.structs import replace

from predictors.devices import DeviceProfile, load_device
from predictors.errors import InfeasibleError, MissingBackendError, StretchError, UsageError, install_line
from predictors.shapes import InputShapes
from predictors.system import keep_freed_memory
from scheduler.progress import Progress, silent
from stretch.api.parameters import (
    CALIBRATION,
    NO_PLACES,
    PANEL,
    AdvancedOption,
    InputShape,
    MeasuredBlocks,
    Parsed,
    PreprocessingOption,
    TrustCode,
    Weights,
)
from stretch.planning.config import PlanConfig
from stretch.planning.cost.compare import BRANCHED, MIN_GAIN
from stretch.planning.design.branch_design import DesignDraft, exact_kinds, load_draft
from stretch.planning.plan import evaluate, plan
from stretch.planning.result import PlanResult
from stretch.stages.branched import UNKNOWN_ACCURACY, Branched
from stretch.stages.design import read_design

if TYPE_CHECKING:
    from torch import nn

    from scheduler.bundle.manifest import SourceFile
    from scheduler.bundle.preprocessing import Preprocessing
    from stretch.evaluation.sensitivity.blocks import BlockLosses
    from stretch.network.models.load import LoadedModel
    from stretch.planning.cost.accuracy import Sensitivity
    from stretch.stages.network import CapturedNetwork
    from stretch.transform import BranchedModel
    from stretch.transform.calibrate.split import Images

#: Upper limit of a refinement's time: a week, in minutes.
MAX_MINUTES = 7 * 24 * 60

#: Maximum number of networks to build after the first to approach the requested agreement.
APPROACHES = 2


def check_request(config: PlanConfig, options: "BranchOptions") -> None:
    """Refuse impossible measurements and refinements before any work begins."""
    minutes, synthetic, repair, dry_run = options.refine, options.synthetic, options.repair, options.dry_run
    images, design = options.images is not None, options.design is not None
    refined, bounded = minutes is not None, config.min_agreement is not None
    no_time = f"`refine` asks for {minutes or 0.0:g} minutes, which is no time to refine for"
    for wrong, problem, hint in (
        (minutes is not None and not 0 < minutes < MAX_MINUTES, no_time, "give minutes, more than none and less than a week"),
        (refined and not images, "a network is refined on images, and there are none", "give `images`"),
        (synthetic and not images, "images made from the network only supplement others, and there are none", "give `images`"),
        (refined and dry_run, "a dry run builds no network that could be refined", "leave out `refine`"),
        (repair and not bounded, "there is nothing to repair without a bound", "say how often to agree, such as `min_agreement=0.95`"),
        (
            bounded and dry_run and not config.accuracy,
            "a dry run builds no network that could agree with the original",
            "leave out `min_agreement`, or give a file as `accuracy`",
        ),
        (
            bounded and not images and not dry_run,
            "how often two networks agree is measured on images, and there are none",
            "give `images`",
        ),
        (bounded and repair and design, "a design that is given is not changed", "leave out `repair` or `design`"),
    ):
        if wrong:
            raise UsageError(problem, hint)
    check_run(options.run_images, mapped=bool(options.mapping), images=images)


def check_run(count: int, *, mapped: bool, images: bool) -> None:
    """Refuse an impossible request to run a bundle's files."""
    if count < 0:
        raise UsageError(f"`run_images={count}` is no number of images", "give 0 for none, or more")
    if mapped and not images:
        raise UsageError(
            "processors are mapped for comparing the bundle's files with the original, and there are no images to compare them on",
            "give `images`, or map processors when the bundle runs",
        )


def with_exact_kinds(config: PlanConfig) -> PlanConfig:
    """Return the request with exact divisions allowed, if its search supports them."""
    if config.strategy != "exact" or config.widens:
        return config
    return replace(config, kinds=tuple(dict.fromkeys((*config.planned_kinds, *exact_kinds()))))


def _worst_segments(result: "Branched") -> list[str]:
    """Return the stages of the segment that agrees least as the only changed segment; empty if no segment is changed."""
    assert result.agreement is not None
    known = [segment_agreement for segment_agreement in result.agreement.segments if segment_agreement.value is not None]
    # among equals take the segment with the larger error; segments that cannot be compared alone come last
    worst = min(
        known,
        key=lambda segment_agreement: (segment_agreement.value, -(segment_agreement.error or 0.0)),
        default=next(iter(result.agreement.segments), None),
    )
    if worst is None:
        return []
    segment = next(row.segment for row in result.plan.run.segments if row.segment.name == worst.segment)
    kept = result.plan.config.keep
    return [stage.name for stage in result.plan.stages_of(segment) if stage.name not in kept]


def _unmeasured_error(result: "Branched") -> StretchError:
    agreement = result.agreement
    reason = "there are too few images to hold any back" if agreement is None else "its outputs are no list of class scores"
    if agreement is not None and agreement.classes:
        reason = "it answers nearly always the same class on these images: give images of several classes"
    return StretchError(
        f"how often `{result.plan.graph.name}` agrees with the original was not measured: {reason}", "leave out `min_agreement`"
    )


def _agreement_error(result: "Branched", least: float, *, repaired: bool) -> InfeasibleError:
    agreement = result.agreement
    assert agreement is not None
    problem = (
        f"`{result.plan.graph.name}` branched sees the original's class in {agreement.value:.1%} of {agreement.images} held-out images, "
        f"`min_agreement={least:g}` asks for more"
    )
    if repaired:
        return InfeasibleError(problem, "give more images to calibrate with, or ask for less")
    worst = ", ".join(
        f"`{segment.segment}` alone keeps {segment.value:.0%}"
        for segment in sorted(agreement.segments, key=lambda segment: segment.value or 0.0)
        if segment.value is not None
    )
    return InfeasibleError(problem, "let segments stay as they are until it holds with `repair`" + (f" ({worst})" if worst else ""))


class BranchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `branch` and `stretch branch`, in addition to those of the planner.

    Args:
        input_shape: Channels, height, width, with or without the batch before them; for several inputs, or an input other than an image, a shape
            each, batch first, in order or by the names of the forward's arguments; the model's default if None.
        images: Folder of unlabelled images. Some measure the importance of blocks and fit every layer and join to the
            original; others are held back to compare the network with the original. None: no measurement and no fit.
        only_if_faster: Whether the call ends after planning if branches are not recommended; the result then has `withheld` set.
        preprocessing: Preprocessing of pictures, or a table of changes to the model's preprocessing, such as ``{"crop": 0.9}``.
    """

    input_shape: InputShape = None
    weights: Weights = "default"
    design: Annotated[
        "str | Path | DesignDraft | None",
        typer.Option(help="Build this design (TOML) instead of searching for one.", rich_help_panel=PANEL),
        Parsed(Path | None, Path),
    ] = None
    images: Annotated[
        str | Path | None,
        typer.Option(help="Folder of unlabelled images (pictures or .npy) to calibrate the new network with.", rich_help_panel=CALIBRATION),
    ] = None
    refine: Annotated[
        float | None,
        typer.Option(
            help="Minutes of refinement after calibration: gradient descent without labels, on a GPU if there is one.",
            rich_help_panel=CALIBRATION,
        ),
    ] = None
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Divide segments exactly and leave out blocks that matter little, as far as --min-agreement allows.",
            rich_help_panel=CALIBRATION,
        ),
    ] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Plan only: build no model and write nothing.")] = False
    only_if_faster: Annotated[
        bool,
        typer.Option("--only-if-faster", help="Write nothing, and end with exit code 4, if branches are not recommended. For scripts."),
    ] = False
    trust_code: TrustCode = False
    seed: Annotated[int, AdvancedOption("Seed of random weights.")] = 0
    image_count: Annotated[int, Meta(ge=16), AdvancedOption("Maximum number of calibration images.")] = 256
    synthetic: Annotated[int, Meta(ge=0), AdvancedOption("Number of additional images made from the network itself.")] = 0
    run_images: Annotated[
        int,
        Meta(ge=0),
        AdvancedOption("Maximum number of held-back images that the bundle's files are run on, in their planned precisions; 0 for none."),
    ] = 64
    mapping: Annotated[
        Mapping[str, str],
        AdvancedOption("Delegate that replaces a processor in that run, such as dsp=dsp (its simulator) or gpu=opencl. Default: the CPU."),
        Parsed(dict[str, str], dict),
    ] = NO_PLACES
    measured_blocks: MeasuredBlocks = None
    preprocessing: PreprocessingOption = None
    controls: Annotated[bool, AdvancedOption("Whether the bundle has the sequential controls, which it is compared with.")] = True


def branch(
    model: "str | nn.Module",
    device: str | Path | DeviceProfile,
    options: BranchOptions | None = None,
    *,
    out: str | Path | None = None,
    config: PlanConfig | None = None,
    progress: Progress | None = None,
    **named: Any,
) -> Branched:
    """Plan and build a branched network for a device and, on request, write a bundle; a given module and the global random state do not change.

    Args:
        model: A name of `stretch list models`, ``package.module:factory``, the path of an ONNX file, or a module, in any mode, on any device and in any floating-point type.
        device: Profile id, path of a profile, or a profile.
        options: Options of the job, such as ``BranchOptions(dry_run=True)``.
        out: Folder of the bundle, which replaces an earlier bundle there; no bundle if None.
        config: Constraints of the search; for a given design, precisions and floors of the controls.
        progress: Called with a short name of each next step.
        named: Single options of `BranchOptions` and of `PlanConfig`, such as ``images="folder"`` and ``alpha=0.3``, which override
            `options` and `config`.

    Raises:
        StretchError: Or a subclass: unknown names, networks that cannot be captured, no design, no folder to write to.
    """
    options = replace(options or BranchOptions(), **{name: named.pop(name) for name in BranchOptions.__struct_fields__ if name in named})
    config = (config or PlanConfig()).replace(named)
    # check the request before the slow import of torch
    profile = device if isinstance(device, DeviceProfile) else load_device(device)
    if options.design is None or len(profile.default_processors) < 2:
        config.resolve(profile)
    draft = load_draft(Path(options.design)) if isinstance(options.design, str | Path) else options.design
    check_request(config, options)
    if options.images is not None:
        from stretch.export.quantize.images import image_files

        image_files(Path(options.images))
    if out is not None and not options.dry_run:
        from stretch.export.staging import check_target

        check_target(Path(out))
    phases = Phases(progress or silent)
    with loading_torch(phases):
        from stretch.evaluation.sensitivity.blocks import BlockLosses

        network = read_model(
            model, options.input_shape, phases, weights=str(options.weights), seed=options.seed, trust_code=options.trust_code
        )
        own = _compare_with_file(network, phases)
        read, fitted = _read_images(network, options, phases)
        losses = None if fitted is None else BlockLosses(network.captured, fitted.fitted, phases.progress)
        source = None if draft else _measure_sensitivity(network, profile, config, fitted, options.measured_blocks, phases, losses)
        job = _Job(network, profile, draft, options, own, read, fitted, source, losses, phases)
        result = job.run(config)
        job.compare_shortened(result)
    if out is not None and result.model is not None and not result.withheld:
        with phases("export"):
            result.save(out, controls=options.controls, progress=progress)
    return result


def _compare_with_file(network: "CapturedNetwork", phases: "Phases") -> "tuple[Path, SourceFile] | None":
    """Compare a network with its file; return the file with its inputs and outputs, None if it was not run."""
    from stretch.stages.own_file import check_own_file

    with phases("compare with the file") if hasattr(network.loaded.module, "own_file") else nullcontext():
        warnings, own = check_own_file(network.loaded)
    network.loaded.warnings.extend(warnings)
    return own


def _read_images(network: "CapturedNetwork", options: BranchOptions, phases: "Phases") -> "tuple[Preprocessing, Images | None]":
    """Return the preprocessing of pictures, and images for calibration and comparison; None without images."""
    from scheduler.bundle.preprocessing import requested_preprocessing
    from stretch.stages.build import divide_images

    read = requested_preprocessing(network.loaded.preprocessing, options.preprocessing, network.graph.inputs[0].shape)
    if options.images is None or options.dry_run:
        return read, None
    folder, count, synthetic = Path(options.images), options.image_count, options.synthetic
    with phases("images"):
        return read, divide_images(folder, network.captured, count, read, synthetic=synthetic, progress=phases.progress)


def _measure_sensitivity(
    network: "CapturedNetwork",
    profile: DeviceProfile,
    config: PlanConfig,
    fitted: "Images | None",
    count: int | None,
    phases: "Phases",
    losses: "BlockLosses | None",
) -> "Sensitivity | None":
    """Return the measured sensitivity if the request bounds agreement and no file predicts it; None otherwise."""
    from stretch.evaluation.sensitivity.source import plannable, sensitivity_of

    if config.min_agreement is None or fitted is None or not fitted.held_back or config.accuracy or not plannable(config):
        return None
    # if no stage can be stretched, a replacement of the request is planned, and its agreement is measured after the build
    with phases("sensitivity"), suppress(InfeasibleError):
        return sensitivity_of(network.captured, profile, config, fitted.for_planning, count, phases.progress, losses)
    return None


@dataclass(frozen=True)
class _Job:
    """Shared data of all attempts at a request: the network, its images, and the options in addition to the plan."""

    network: "CapturedNetwork"
    profile: DeviceProfile
    draft: DesignDraft | None
    options: BranchOptions
    own: "tuple[Path, SourceFile] | None"
    preprocessing: "Preprocessing"
    fitted: "Images | None"
    source: "Sensitivity | None"
    losses: "BlockLosses | None"
    phases: "Phases"

    def run(self, request: PlanConfig) -> Branched:
        """Return the network of a request, with the requested agreement."""
        repair, least = self.options.repair, request.min_agreement
        mixed = with_exact_kinds(request) if repair and self.source is not None else request
        try:
            result = self.make(mixed)
        except InfeasibleError:
            if mixed == request:
                raise
            result = self.make(request)
        if least is None or self.options.dry_run:
            return result
        return self.keep_segments(self.approach(result, least) if repair else result, least)

    def keep_segments(self, result: Branched, least: float) -> Branched:
        """Return the network if its agreement suffices, else, if repair is allowed, a network with fewer stretched stages.

        Each round keeps the segment with the largest single loss as in the original: on one processor,
        or divided exactly if joins and strategy of the request allow it. The remaining network
        is planned, calibrated and compared again.
        """
        request = with_exact_kinds(result.plan.config)
        while not result.withheld:
            agreement = result.agreement
            if agreement is None or agreement.value is None:
                raise _unmeasured_error(result)
            if result.agrees(least):
                return result
            worst = _worst_segments(result)
            if not self.options.repair or not worst:
                raise _agreement_error(result, least, repaired=self.options.repair)
            request = replace(request, keep=(*request.keep, *worst))
            result = self.make(request)
        return result

    def make(self, request: PlanConfig, known: PlanResult | None = None) -> Branched:
        """Plan a request, unless its plan is `known`, and build and fit the network, unless it is a dry run or withheld."""
        loaded, captured, options = self.network.loaded, self.network.captured, self.options
        planned = known or self._plan(request)
        result = Branched(
            planned,
            loaded.weights_source,
            loaded.weights_detail,
            [*loaded.warnings, *captured.warnings],
            self.phases.seconds,
            own=self.own,
            unjudged=self.own is None and hasattr(loaded.module, "own_file") and loaded.weights_source == "given",
            preprocessing=self.preprocessing,
            run_images=options.run_images,
            mapping=options.mapping,
            # with images, the shortened network only decides after its agreement is measured
            withheld=options.only_if_faster and (planned.fastest if self.fitted else planned.recommended) != BRANCHED,
        )
        if captured.refusal:
            result.warnings.append(
                f"{captured.refusal}, so the network was captured by torch.export instead: it is planned for inputs of this size alone"
            )
        result.warnings += planned.sharing
        if options.images is None and not planned.exact:
            result.warnings.append(UNKNOWN_ACCURACY)
        if options.dry_run and options.weights != "none":
            from stretch.operators.opaque.calls import calls_of
            from stretch.operators.opaque.snippets import prepare

            prepare((calls_of(op.attrs), op.shape) for op in captured.graph.ops if op.kind == "opaque")
        if not options.dry_run and not result.withheld:
            self._build(result)
        return result

    def approach(self, result: Branched, least: float) -> Branched:
        """Return the fastest of a few networks that agrees often enough, or else the last network.

        The agreement of each, on images outside calibration and final comparison, corrects the prediction for the next.
        """
        from stretch.evaluation.agreement import compare
        from stretch.evaluation.sensitivity.source import lowest_plausible, lowest_prediction

        request, latest, best, designs = with_exact_kinds(result.plan.config), result, None, []
        for left in reversed(range(APPROACHES + 1)):
            predicted, source, model = latest.plan.accuracy, self.source, latest.model
            if source is None or self.fitted is None or predicted is None or predicted.agreement is None or model is None:
                break
            with self.phases("compare"):
                seen, _ = compare(model, self.network.captured, self.fitted.for_planning.held_back, each=False)
            if seen.value is None:
                break
            self.phases.progress(f"agrees in {seen.value:.1%} of images, {predicted.agreement:.1%} were predicted")
            if latest.agrees(least):
                best = latest
            # a network without loss does not show how far predictions for others are off
            bound = lowest_plausible(source, least) if predicted.agreement >= 1 else lowest_prediction(least, predicted.agreement, seen)
            designs.append(latest.plan.design)
            try:
                planned = self._plan(replace(request, min_agreement=1.0 if left == 1 and best is None else bound))
            except InfeasibleError:
                break
            slower = best is not None and planned.run.makespan_ms * MIN_GAIN > best.plan.run.makespan_ms
            if not left or slower or planned.design in designs:
                break
            config = replace(planned.config, min_agreement=least)
            latest = self.make(config, dataclasses.replace(planned, config=config))
        return best or latest

    def _plan(self, request: PlanConfig) -> PlanResult:
        from scheduler.placement.mapping import place_processors

        graph = self.network.graph
        # without a prediction, agreement is measured on the built network
        changed = request if self.source is not None or request.accuracy else replace(request, min_agreement=None)
        with self.phases("plan"):
            if self.draft is None:
                planned = plan(graph, self.profile, changed, self.source, self.losses)
            else:
                planned = evaluate(graph, self.profile, read_design(self.draft, graph, self.profile), changed, self.source, self.losses)
        if self.options.mapping:
            place_processors(planned.design.processors, self.options.mapping)
        return planned

    def _build(self, result: Branched) -> None:
        """Build the network of a plan, with its control, and fit it if there are images."""
        from stretch.stages.build import build_control
        from stretch.transform import build
        from stretch.transform.refine import fingerprint

        captured = self.network.captured
        with self.phases("transform"):
            result.original, result.model = captured, build(captured, result.plan.design)
            if self.options.controls:
                result.sequential = build_control(captured, result.plan)
        if self.fitted is not None:
            self._fit(result, result.model, self.fitted)
        result.built = fingerprint(result.model.state_dict())

    def _fit(self, result: Branched, model: "BranchedModel", fitted: "Images") -> None:
        """Calibrate a network on images, refine it on request, and compare it with the original on held-back images."""
        from stretch.stages.build import compare_with_original, refine_and_compare
        from stretch.transform.calibrate import calibrate
        from stretch.transform.refine import Refinement

        captured, options = self.network.captured, self.options
        result.images = fitted
        with self.phases("calibrate"):
            result.calibration = calibrate(model, captured, fitted.fitted, synthetic=fitted.synthetic)
        if options.refine is not None:
            with self.phases("refine"):
                progress, precision = self.phases.progress, result.plan.config.precision
                outcome = refine_and_compare(model, captured, fitted, Refinement(options.refine), progress=progress, precision=precision)
            result.refinement, result.agreement, result.ranges = outcome.refinement, outcome.after, outcome.ranges
            warnings, result.calibrated = outcome.warnings, outcome.before
        else:
            with self.phases("compare"):
                result.agreement, warnings = compare_with_original(model, captured, fitted.held_back)
            result.calibrated = result.agreement
        result.warnings += [*fitted.warnings, *warnings]
        if options.synthetic:
            detail = f"fitted also to {options.synthetic} images made from it"
            result.weights_detail = "; ".join(filter(None, (result.weights_detail, detail)))

    def compare_shortened(self, result: Branched) -> None:
        """Build the plan's shortened network, calibrate it like the branches, and compare both with the original."""
        from stretch.stages.build import fit_shortened

        shortened, fitted = result.plan.shortened, self.fitted
        if shortened is None or fitted is None or result.model is None:
            return
        with self.phases("fewer blocks"):
            result.shortened, kept = fit_shortened(self.network.captured, shortened, fitted, result.calibrated)
        result.plan = dataclasses.replace(result.plan, shortened=replace(shortened, kept=kept))
        result.withheld = self.options.only_if_faster and result.plan.recommended != BRANCHED


@contextmanager
def loading_torch(phases: "Phases") -> Iterator[None]:
    """Load torch; preserve the global random state, exclude existing objects from garbage collection, and keep freed memory."""
    with phases("import torch"):
        import_torch()
    from stretch.stages.arguments import freeze_garbage, preserve_random_state

    with preserve_random_state(), freeze_garbage(), keep_freed_memory():
        yield


def read_model(model: "str | nn.Module", input_shape: InputShapes | None, phases: "Phases", **options: Any) -> "CapturedNetwork":
    """Return the network of a name or a module; `options` are passed to `read_network`."""
    from stretch.stages.arguments import full_shape
    from stretch.stages.network import read_network

    shape = None if input_shape is None else full_shape(input_shape)
    return read_network(model if isinstance(model, str) else partial(_load_module, model, shape), shape, phase=phases, **options)


@dataclass(frozen=True)
class Phases:
    """Reports the phases of a job and measures their wall times."""

    progress: Progress = silent
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Report the start of a phase, and add its wall time."""
        self.progress(name)
        start = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


def import_torch() -> None:
    """Import torch, a separate phase because it is the slowest one for a small model."""
    try:
        import torch  # noqa: F401 - only to load it
    except ModuleNotFoundError as error:
        raise MissingBackendError("branching a model needs torch, which is not installed", install_line("torch")) from error


def _load_module(module: Any, shape: InputShapes | None) -> "LoadedModel":
    """Return a copy of a caller's module as a loaded model."""
    from torch import nn

    from stretch.network.models.load import USUAL_INPUT, LoadedModel, stated_preprocessing
    from stretch.stages.arguments import copy_module, other_weight_types

    if not isinstance(module, nn.Module):
        given = f"the class {module.__name__}" if isinstance(module, type) else type(module).__name__
        raise UsageError(f"a model is a name or a torch.nn.Module, not {given}", "make the module first, as in branch(Net(), device)")
    copied = copy_module(module, shape or USUAL_INPUT)
    other_types = other_weight_types(module)
    warnings = [f"the module's weights are {other_types}: the branches compute in float32"] if other_types else []
    name = type(module).__name__
    return LoadedModel(copied, name, shape or USUAL_INPUT, "given", "the module's own", stated_preprocessing(module, name), warnings)
