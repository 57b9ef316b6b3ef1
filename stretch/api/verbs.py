"""Python functions for the verbs of the command line, each named after its verb."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer

from predictors.devices import DeviceProfile, load_device, load_devices
from predictors.errors import UsageError
from predictors.files import check_folder
from predictors.system import keep_freed_memory
from scheduler.progress import Progress, silent
from stretch.api.parameters import (
    NO_PLACES,
    BundleFolder,
    DelegateMap,
    InputShape,
    Model,
    Parsed,
    PreprocessingOption,
    Processors,
    TrustCode,
    device_option,
    input_words,
)
from stretch.planning.config import PlanConfig

if TYPE_CHECKING:
    from torch import nn

    from scheduler.adapt.policy import Prefer
    from scheduler.simulate.answer import SimulateAnswer
    from scheduler.simulate.clock import SimulationResult
    from stretch.evaluation.measure import EvaluateAnswer
    from stretch.planning.result import PlanResult
    from stretch.stages.advise import Advice
    from stretch.stages.explain import Explanation
    from stretch.stages.network import ReadGraph
    from stretch.stages.predict import Prediction
    from stretch.train.loop import Listener
    from stretch.train.session import TrainAnswer

#: Maximum number of traced inferences in a simulation with a written timeline.
MAX_TRACED = 64


def plan(model: "str | nn.Module", device: str | Path | DeviceProfile, *, config: PlanConfig | None = None, **named: Any) -> "PlanResult":
    """Plan branches for a device, without building them.

    Args:
        model: A name of `stretch list models`, ``package.module:factory``, a file, or a module.
        device: Profile id, path of a profile, or a profile.
        config: Constraints of the search; for a given design, precisions and floors of the controls.
        named: Single options of `PlanConfig`, which override `config`, and of `BranchOptions`, such as ``design="design.toml"``.

    Raises:
        StretchError: Or a subclass: unknown names, a network that cannot be captured, no design.
    """
    from stretch.api.main_job import BranchOptions, branch

    return branch(model, device, BranchOptions(weights="none", dry_run=True), config=config, **named).plan


class PredictOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a prediction."""

    processor: Annotated[str | None, typer.Option(help="Processor, such as gpu or cpu[1large]. Default: all.")] = None
    precision: Annotated[str | None, typer.Option(help="fp32, fp16 or int8. Default: that of each processor.")] = None
    input_shape: InputShape = None
    weights: Annotated[
        str,
        typer.Option(
            help="A weights file, which is checked against the model; default and none read no weights, as latency does not depend on them."
        ),
    ] = "none"
    trust_code: TrustCode = False

    def read(self, model: str) -> "ReadGraph":
        """Read the graph of a model."""
        from stretch.stages.network import read_graph

        return read_graph(model, self.input_shape, weights=self.weights, trust_code=self.trust_code)


def predict(
    model: "str | ReadGraph",
    device: str | Path | DeviceProfile,
    options: PredictOptions | None = None,
    *,
    kernels: bool = True,
) -> "Prediction":
    """Predict the latency of a model on each processor of a device.

    Args:
        model: A name of `stretch list models`, Python code or a file; or a graph from `PredictOptions.read`.
        device: Profile id, path of a profile, or a profile.
        options: Options of the prediction, such as ``PredictOptions(processor="gpu")``.
        kernels: Whether the answer lists every kernel.

    Raises:
        StretchError: Or a subclass: unknown names, a model without a graph.
    """
    from predictors.predictor import not_measured

    profile = device if isinstance(device, DeviceProfile) else load_device(device)
    options = options or PredictOptions()
    names = processors_to_predict(profile, options.processor, options.precision)
    from stretch.stages.predict import predict_latency

    readout = options.read(model) if isinstance(model, str) else model
    graph, warnings = readout.graph, list(readout.warnings)
    if readout.refusal is not None:
        opaque, count = sum(op.kind == "opaque" for op in graph.ops), sum(op.kind != "input" for op in graph.ops)
        warnings.append(
            f"{readout.refusal}: it is predicted from {readout.instead}, {opaque} of its {count} operators by their sizes alone"
        )
    answer = predict_latency(readout.name, graph, profile, names, options.precision, kernels=kernels, warnings=warnings)
    guessed = not_measured(answer.device, ((name, row.origin) for name, row in answer.processors.items()))
    unlike = [
        f"{row.by_roofline} of {row.kernel_count} kernels on {name} resemble no measured kernel and are timed by the roofline"
        for name, row in answer.processors.items()
        if row.calibrated and row.by_roofline
    ]
    return msgspec.structs.replace(answer, warnings=[*answer.warnings, *([guessed] if guessed else []), *unlike])


def processors_to_predict(
    profile: DeviceProfile, processor: str | None, precision: str | None, *, all_precisions: bool = True
) -> list[str]:
    """Return the processors that support a precision, with all core sets or only the default ones."""
    if processor is not None:
        profile.processor(processor).check_precision(precision)
        return [processor]
    names = profile.variants if all_precisions else profile.processors
    eligible = [name for name in names if precision is None or precision in profile.processor(name).precisions]
    if all_precisions and not eligible:
        raise UsageError(f"no processor of {profile.id} runs `{precision}`", "choose fp32, fp16 or int8")
    return eligible


SimulatedBundle = Annotated[str | Path, typer.Argument(help="Folder of a bundle, or a .csv table of steps: name,processor,ms,needs,bytes.")]
SimulatedDevice = Annotated[
    str | Path | None,
    device_option("Device to simulate: id or path of a profile. Default: the device of the bundle; for a table of steps none."),
    Parsed(str | None, str),
]


def _prefer(text: str) -> "Prefer":
    from scheduler.adapt.policy import PREFER

    for known in PREFER:
        if text == known:
            return known
    raise UsageError(f"`{text}` is no objective of a policy", f"one of {', '.join(PREFER)}")


class SimulateOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Disturbances, requests and policy of a simulation."""

    alternatives: Annotated[
        Sequence[str],
        typer.Option(
            "--or",
            help="Alternative plan for contended processors: a bundle of the same network, or processors of this one, such as cpu; repeatable.",
        ),
    ] = ()
    prefer: Annotated[
        Literal["latency", "energy", "deadline"],
        typer.Option(
            help="Policy for choosing among plans: latency (the fastest), energy (the lowest energy), or deadline (the lowest energy "
            "of those that meet the deadline)."
        ),
        Parsed(str, _prefer),
    ] = "latency"
    beside: Annotated[
        Sequence[str],
        typer.Option(
            help="Bundle of another client that shares the processors, such as runs/other, runs/other@periodic:33.3 with its own requests, or "
            "runs/other@periodic:33.3@50 with a deadline in ms; repeatable."
        ),
    ] = ()
    inferences: Annotated[int, typer.Option(help="Number of inferences to simulate.", min=1, max=1_000_000)] = 100
    busy: Annotated[
        Sequence[str],
        typer.Option(
            help="Background load: share of a processor and its interval in ms, such as gpu=0.9@50:155; repeat or separate by commas."
        ),
    ] = ()
    frequency: Annotated[
        Sequence[str],
        typer.Option(help="Speed factor of a processor and its interval in ms, such as gpu=0.5@100:500; repeat or separate by commas."),
    ] = ()
    heat: Annotated[
        str | None, typer.Option(help="Simulate heating and throttling: `profile` for the model in the device's profile, or a TOML file.")
    ] = None
    jitter: Annotated[float, typer.Option(help="Jitter of computing times: the standard deviation of their logarithm.")] = 0.0
    seed: Annotated[int, typer.Option(help="Random seed of jitter and arrivals.", min=0)] = 0
    arrivals: Annotated[
        str | None,
        typer.Option(help="Arrivals of requests: periodic:MS, or poisson:RATE in requests per second. Default: as soon as a lane is free."),
    ] = None
    in_flight: Annotated[int, typer.Option(help="Inferences at once.", min=1, max=64)] = 1
    deadline: Annotated[float | None, typer.Option(help="Milliseconds from request to output; reports how many inferences miss it.")] = None
    shared: Annotated[
        bool, typer.Option("--shared", help="Schedule the bundles' steps by deadlines and fair shares, as a Scheduler in Python does.")
    ] = False
    admit: Annotated[
        bool, typer.Option("--admit", help="Report whether all requests can be answered in time at their rates, with this scheduling.")
    ] = False
    trace: Annotated[Path | None, typer.Option(help="Write a timeline of the first inferences for ui.perfetto.dev to this file.")] = None


def simulate(
    bundle: SimulatedBundle,
    device: SimulatedDevice = None,
    options: SimulateOptions | None = None,
    *,
    progress: Progress | None = None,
) -> "tuple[SimulateAnswer, SimulationResult]":
    """Simulate a bundle on its device, or a table of steps, under disturbances.

    Args:
        options: Disturbances, requests and policy, such as ``SimulateOptions(jitter=0.05)``.
        progress: Called from time to time.

    Returns:
        The answer, and the simulated inferences with their latencies and traces.

    Raises:
        StretchError: Or a subclass: no bundle, a malformed load, a device that lacks a processor.
    """
    from predictors.thermal import read_thermal
    from scheduler.bundle.load import load_bundle
    from scheduler.runtime.trace import write_perfetto
    from scheduler.simulate.answer import SimulationRequest, parse_alternative, parse_workload, simulate_steps, tracks
    from scheduler.simulate.answer import simulate as simulate_bundle
    from scheduler.simulate.networks import read_steps
    from scheduler.simulate.scene import Scene, parse_arrivals, parse_frequencies, parse_loads, thermal_of

    options = options or SimulateOptions()
    if options.trace is not None:
        check_folder(options.trace, "--trace")
    scene = Scene(
        runs=options.inferences,
        in_flight=options.in_flight,
        arrivals=None if options.arrivals is None else parse_arrivals(options.arrivals),
        loads=parse_loads(list(options.busy)),
        frequencies=parse_frequencies(list(options.frequency)),
        jitter=options.jitter,
        seed=options.seed,
        traced=MAX_TRACED if options.trace is not None else 1,
    )
    path = Path(bundle)
    table = read_steps(path) if path.suffix == ".csv" and not path.is_dir() else None
    loaded = None if table is not None else load_bundle(path, check_hashes=True)
    named = device or (loaded.manifest.device if loaded is not None else None)
    profile = None if named is None else load_device(named)
    if loaded is None and (options.alternatives or options.beside):
        raise UsageError(f"{bundle} is a table of steps, which runs alone", "--or and --beside are for bundles")
    heat = options.heat
    if profile is None and heat is not None:
        raise UsageError(f"{bundle} states no power of processors, which heat comes from", "name a device with --device")
    request = SimulationRequest(
        arrivals=options.arrivals,
        deadline_ms=options.deadline,
        trace=options.trace,
        shared=options.shared,
        admit=options.admit,
        prefer=options.prefer,
        alternatives=tuple(parse_alternative(text, loaded) for text in options.alternatives) if loaded is not None else (),
        thermal=None if heat is None else thermal_of(profile) if heat == "profile" and profile is not None else read_thermal(Path(heat)),
        workloads=tuple(map(parse_workload, options.beside)),
    )
    if table is not None:
        answer, simulated = simulate_steps(table, profile, scene, request, progress or silent)
    else:
        assert loaded is not None
        assert profile is not None
        answer, simulated = simulate_bundle(loaded, profile, scene, request, progress or silent)
    if options.trace is not None:
        write_perfetto(options.trace, tracks(answer, simulated))
    return answer, simulated


class TrainOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the training of a recipe."""

    changes: Annotated[Sequence[str], typer.Option("--set", help="Override a value of the recipe, such as train.epochs=5.")] = ()
    resume: Annotated[bool, typer.Option("--resume", help="Resume from the newest complete checkpoint of the run.")] = False
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Build everything and train one step on synthetic images, without writing anything.")
    ] = False
    trust_code: Annotated[bool, typer.Option("--trust-code", help="Execute Python code that the recipe names as its model.")] = False


def train(
    recipe: str | Path, out: str | Path | None = None, options: TrainOptions | None = None, *, listener: "Listener | None" = None
) -> "TrainAnswer | None":
    """Train a branched network, or a supernet of many designs, from a recipe.

    `stretch.api.refine_bundle` refines the network of a bundle.

    Args:
        recipe: A TOML file, or the name of an installed recipe.
        out: Folder of the run; ``runs/RECIPE`` if None.
        options: Options of the training, such as ``TrainOptions(resume=True)``.
        listener: Receives progress reports.

    Returns:
        Result of the run; None in all but the first process of a distributed run.

    Raises:
        StretchError: Or a subclass: an unknown recipe or key, missing images, an existing run.
    """
    from stretch.train.recipe import find_recipe, load_recipe

    options, path = options or TrainOptions(), find_recipe(str(recipe))
    loaded = load_recipe(path, tuple(options.changes))
    from stretch.train.distributed import join_world
    from stretch.train.session import train_recipe, try_recipe

    target, trust_code = Path("runs") / path.stem if out is None else Path(out), options.trust_code
    with join_world(loaded.data.device) as world, keep_freed_memory():
        if options.dry_run:
            done = try_recipe(loaded, path.parent, world, trust_code=trust_code)
        else:
            done = train_recipe(loaded, path.parent, target, resume=options.resume, trust_code=trust_code, world=world, listener=listener)
        return done if world.first else None


Explained = Annotated[str | Path, typer.Argument(metavar="BUNDLE", help="Folder of a bundle; with --runtime an ONNX or TFLite file.")]
ExplainedDevice = Annotated[
    str | Path | None,
    device_option(
        "Predict for this device (see `stretch list devices`) instead of measuring here; with --runtime, a device of the runtime."
    ),
    Parsed(str | None, str),
]


def explain(
    what: Explained, device: ExplainedDevice = None, *, mapping: DelegateMap = NO_PLACES, progress: Progress | None = None
) -> "Explanation":
    """Explain the placement of each operator of a bundle, with the reason and the time.

    Args:
        progress: Called for each subgraph.

    Raises:
        StretchError: Or a subclass: no bundle, an unknown device.
    """
    path = Path(what)
    from scheduler.bundle.load import load_bundle
    from stretch.stages.explain import explain_here, explain_on

    if device is not None and mapping:
        raise UsageError("--map places processors on this machine, --device predicts for another", "give one of the two")
    if path.suffix.lower() in (".onnx", ".tflite") and path.is_file():
        raise UsageError(f"{path} is a file, not the folder of a bundle", "add --runtime onnxruntime, qnn, openvino, litert or opencl")
    loaded = load_bundle(path, check_hashes=True)
    if device is None:
        return explain_here(loaded, mapping, progress or silent)
    return explain_on(loaded, load_device(device), progress or silent)


EvaluatedImages = Annotated[
    str | Path, typer.Option(help="Folder of class folders, a .csv or .tsv table of file and label, or a folder of unlabelled images.")
]


class EvaluateOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a measurement of accuracy."""

    classes: Annotated[Path | None, typer.Option(help="File with the class names in output order, one per line.")] = None
    labels: Annotated[bool, typer.Option("--labels/--no-labels", help="Whether folder names are class labels.")] = True
    image_count: Annotated[int | None, typer.Option(help="Maximum number of images, spread evenly over all.", min=1)] = None
    mapping: DelegateMap = NO_PLACES
    processors: Processors = None
    preprocessing: PreprocessingOption = None


def evaluate(
    bundle: BundleFolder, images: EvaluatedImages, options: EvaluateOptions | None = None, *, progress: Progress | None = None
) -> "EvaluateAnswer":
    """Measure a bundle's accuracy on images, and its agreement with the original.

    Args:
        options: Options of the measurement, such as ``EvaluateOptions(labels=False)``.
        progress: Called for each file.

    Raises:
        StretchError: Or a subclass: no bundle, no images, a network that does not classify.
    """
    from scheduler.answer import PlacedProcessor
    from scheduler.bundle.load import load_bundle
    from scheduler.bundle.preprocessing import IMAGENET, requested_preprocessing
    from scheduler.measure.benchmark import used_cores
    from scheduler.runtime.inputs import as_array
    from scheduler.runtime.sequential import Sequential
    from scheduler.runtime.session import Session
    from stretch.evaluation import measure

    options, loaded = options or EvaluateOptions(), load_bundle(bundle, check_hashes=True)
    manifest, outputs = loaded.manifest, measure.outputs_of(loaded)
    shape = manifest.model.input_shape
    read = requested_preprocessing(manifest.model.preprocessing or IMAGENET, options.preprocessing or None, shape)
    image_set = measure.find_images(Path(images), outputs, options.classes, labelled=options.labels)
    files = image_set.spread(options.image_count)
    warnings = []
    with Session(loaded, options.mapping, processors=options.processors) as session:
        if not session.computes:
            raise UsageError("a delegate computes no outputs, so there is nothing to evaluate", "map processors to delegates that compute")
        if (control := manifest.controls.get("original")) is None:
            warnings.append("the bundle was written without controls, so it cannot be compared with the original")
        reference = None if control is None else Sequential(loaded.file(control), used_cores(session))
        original = None if reference is None else (lambda x: as_array(reference.run(x)))
        arriving = measure.images_of(files, shape, read, progress or silent)
        result = measure.evaluate(session, original, arriving, outputs, manifest.calibrated_on)
        processors_used = {name: PlacedProcessor.of(place) for name, place in session.placements.items()}
    if original is not None and result.sums.classes and not result.sums.diverse:
        warnings.append(measure.one_sided_reason(result.sums.classes))
    if result.calibrated_on:
        warnings.append(
            f"{result.calibrated_on} of the {result.images} images were used to calibrate this bundle, so these figures are too good: "
            "evaluate it on others"
        )
    return measure.EvaluateAnswer(
        bundle=loaded.path,
        model=manifest.model.name,
        weights=manifest.weights,
        precisions=sorted({entry.precision for entry in manifest.subgraphs}),
        images=measure.ImagesAnswer(
            path=Path(images), labels=image_set.labels, classes=len(image_set.classes), files=len(files), count=result.images
        ),
        preprocessing=read.to_json(),
        top1=result.branched.top1,
        top5=result.branched.top5,
        original=result.original,
        original_classes=len(result.sums.classes) or None,
        calibrated_on=result.calibrated_on,
        agreement=result.agreement,
        top5_overlap=result.top5_overlap,
        error=result.error,
        processors=processors_used,
        warnings=warnings,
    )


AdvisedDevices = Annotated[
    str | Path | DeviceProfile | Sequence[str | Path | DeviceProfile],
    device_option("Profile id (see `stretch list devices`), wildcard pattern or TOML file; several with commas."),
    Parsed(str | None, str),
]
AdvisedPrecision = Annotated[
    str | None,
    typer.Option(
        help="Precision for all processors: fp32, fp16 or int8. A processor that lacks it uses the next higher one. Default: each processor's own."
    ),
]


def advise(
    model: Model,
    device: AdvisedDevices = "*",
    *,
    precision: AdvisedPrecision = None,
    input_shape: InputShape = None,
    trust_code: TrustCode = False,
    progress: Progress | None = None,
) -> "Advice":
    """Return advice for each device on whether to branch a network, with the best single processor and exact and stretched branches.

    No weights are read, because times do not depend on them; a given module does not change.

    Args:
        progress: Called with a short name of each next step, and with each finished device.

    Returns:
        An answer per device, the device with the fastest option first; `stretch advise --json` prints it.

    Raises:
        UsageError: If the precision is unknown, or no device supports it.
        StretchError: Or a subclass: unknown names, networks that cannot be captured.
    """
    from stretch.api.main_job import Phases, loading_torch, read_model
    from stretch.stages.advise import advise as answers
    from stretch.stages.advise import check_precision
    from stretch.stages.arguments import pause_garbage_collection

    profiles = _profiles(device)
    check_precision(profiles, precision)
    tell = progress or silent
    phases = Phases(tell)
    with pause_garbage_collection(), loading_torch(phases):
        graph = read_model(model, input_shape, phases, weights="none", trust_code=trust_code, fit_statistics=False).graph
        name = model if isinstance(model, str) else f"{type(model).__module__}:{type(model).__qualname__}"
        command_options = [*input_words(input_shape), *(["--trust-code"] if trust_code else [])]
        return answers(name, graph, profiles, precision, words=command_options, progress=tell)


def _profiles(device: str | Path | DeviceProfile | Sequence[str | Path | DeviceProfile]) -> list[DeviceProfile]:
    """Return the profiles of devices or patterns, each once."""
    devices = [device] if isinstance(device, str | Path | DeviceProfile) else device
    profiles: list[DeviceProfile] = []
    for one in devices:
        profiles += load_devices(one) if isinstance(one, str) else [one if isinstance(one, DeviceProfile) else load_device(one)]
    return list({profile.id: profile for profile in profiles}.values())
