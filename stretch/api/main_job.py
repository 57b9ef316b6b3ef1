"""From a model and a device to a branched network and, if asked, a bundle."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from predictors.devices import DeviceProfile, load_device
from predictors.errors import MissingBackendError, UsageError
from predictors.install import install_line
from stretch.api.branched import UNKNOWN_ACCURACY, Branched, Step
from stretch.planning.config import PlanConfig
from stretch.planning.design.branch_design import DesignDraft, load_draft
from stretch.planning.plan import PlanResult
from stretch.stages.design import decide_design

if TYPE_CHECKING:
    from torch import nn

    from scheduler.bundle.preprocessing import Preprocessing
    from stretch.capture import Captured
    from stretch.models.load import LoadedModel
    from stretch.stages.network import Network, Phase


def branch(
    model: "str | nn.Module",
    device: str | Path | DeviceProfile,
    *,
    out: str | Path | None = None,
    config: PlanConfig | None = None,
    design: str | Path | DesignDraft | None = None,
    input_shape: Sequence[int] | None = None,
    weights: str | Path = "default",
    seed: int = 0,
    images: str | Path | None = None,
    image_count: int = 256,
    preprocessing: "Preprocessing | Mapping[str, Any] | None" = None,
    controls: bool = True,
    dry_run: bool = False,
    trust_code: bool = False,
    step: Step | None = None,
    **options: Any,
) -> Branched:
    """Stretch a network into branches for a device and, if asked, write a bundle.

    A module that is given is read and copied: its weights, statistics, modes,
    hooks and device stay as they are, and so do the global random numbers.

    Args:
        model: A name of `stretch models`, ``package.module:factory``, or a module, in any
            mode, on any device and in any floating-point type.
        device: Profile id, path of a profile, or a profile.
        out: Folder of the bundle; an earlier bundle there is replaced. None: no bundle.
        config: Constraints of the search; with a design, precisions and floors of the controls.
        design: A design, or the path of one, to build instead of searching for one.
        input_shape: Channels, height, width, with or without the batch (1) before them; the
            model's usual one by default.
        weights: ``default``, ``none`` (random) or a file; ignored for a module.
        seed: Of random weights.
        images: Folder of unlabelled images to calibrate with: every layer and join is
            fitted to what the original computes on them. None: no calibration.
        image_count: Images to take from it, at most.
        preprocessing: What a picture goes through before the model reads it, or a table of the values
            that differ from what the model states, such as ``{"mean": (0.5, 0.5, 0.5)}``; None for what
            it states. Calibration and whoever reads the bundle take pictures so.
        controls: Whether the bundle has the sequential controls.
        dry_run: Stop after planning.
        trust_code: Whether ``file.py:factory`` may be executed.
        step: Called with a few words for what comes next.
        options: Options of the planner by name, such as ``alpha=0.3``, as `PlanConfig` has them;
            they take the place of those of `config`.

    Returns:
        The plan, the network and, with `out`, the bundle.

    Raises:
        StretchError: Or one of its kinds, in one sentence each: names that do not exist,
            networks that cannot be captured, constraints that no design meets,
            folders that cannot be written.
    """
    seconds: dict[str, float] = {}
    phase = partial(_phase, seconds, step)
    if options:
        config = (config or PlanConfig()).having(options)
    profile = device if isinstance(device, DeviceProfile) else load_device(device)
    draft = load_draft(Path(design)) if isinstance(design, str | Path) else design
    if out is not None and not dry_run:
        from stretch.export.staging import check_target

        check_target(Path(out))
    with phase("import torch"):
        _import_torch()
    from scheduler.bundle.preprocessing import asked_preprocessing
    from stretch.api.given import full_shape, random_state_kept
    from stretch.stages.network import read_network

    with random_state_kept():
        shape = None if input_shape is None else full_shape(input_shape)
        source = model if isinstance(model, str) else partial(_given, model, shape)
        network = read_network(source, shape, weights=str(weights), seed=seed, trust_code=trust_code, phase=phase)
        read = asked_preprocessing(network.loaded.preprocessing, preprocessing, network.graph.input.shape)
        with phase("plan"):
            result = _planned(network, decide_design(network.graph, profile, config, draft), seconds, read)
        if images is None and result.plan.changes_network:
            result.warnings.append(UNKNOWN_ACCURACY)
        if dry_run:
            return result
        _build(result, network.captured, controls, None if images is None else Path(images), image_count, phase)
    if out is not None:
        with phase("export"):
            result.save(out, controls=controls, step=step)
    return result


@contextmanager
def _phase(seconds: dict[str, float], step: Step | None, name: str) -> Iterator[None]:
    if step is not None:
        step(name)
    start = time.perf_counter()
    yield
    seconds[name] = time.perf_counter() - start


def _import_torch() -> None:
    """Import torch; the slowest phase of a small model, so it is timed by itself.

    Raises:
        MissingBackendError: If it is not installed.
    """
    try:
        import torch  # noqa: F401 - only to have it loaded
    except ModuleNotFoundError as error:
        raise MissingBackendError("branching a model needs torch, which is not installed", install_line("torch")) from error


def _planned(network: "Network", planned: PlanResult, seconds: dict[str, float], read: "Preprocessing") -> Branched:
    """What is there before anything is built."""
    loaded = network.loaded
    return Branched(planned, loaded.weights_source, loaded.weights_detail, list(loaded.warnings), seconds, preprocessing=read)


def _given(module: Any, shape: tuple[int, ...] | None) -> "LoadedModel":
    """A caller's module as a loaded one, without touching it.

    Raises:
        UsageError: If it is no module.
    """
    from torch import nn

    from stretch.api.given import other_numbers, own_copy
    from stretch.models.load import USUAL_INPUT, LoadedModel
    from stretch.models.preprocessing import stated_preprocessing

    if not isinstance(module, nn.Module):
        what = f"the class {module.__name__}" if isinstance(module, type) else type(module).__name__
        raise UsageError(f"a model is a name or a torch.nn.Module, not {what}", "make the module first, as in branch(Net(), device)")
    copied = own_copy(module, shape or USUAL_INPUT)
    other = other_numbers(module)
    warnings = [f"the module's weights are {other}: the branches compute in float32"] if other else []
    name = type(module).__name__
    return LoadedModel(copied, name, shape or USUAL_INPUT, "given", "the module's own", stated_preprocessing(module, name), warnings)


def _build(result: Branched, captured: "Captured", controls: bool, images: Path | None, image_count: int, phase: "Phase") -> None:
    """Fill in the networks of a plan."""
    from stretch.api.present import fingerprint
    from stretch.stages.build import build_control, calibrate_on
    from stretch.transform import build

    with phase("transform"):
        result.original, result.model = captured, build(captured, result.plan.design)
        if controls:
            result.sequential = build_control(captured, result.plan)
    if images is not None:
        with phase("calibrate"):
            result.calibration = calibrate_on(result.model, captured, images, image_count, result.preprocessing)
    result.built = fingerprint(result.model)
