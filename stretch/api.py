"""The main job in one call: load, capture, plan, transform, export."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from predictors.devices import DeviceProfile, load_device
from predictors.errors import MissingBackendError
from predictors.graph import OpGraph
from predictors.install import install_line
from stretch import __version__
from stretch.planning.config import PlanConfig
from stretch.planning.design import DesignDraft, load_draft
from stretch.planning.plan import PlanResult, evaluate, plan
from stretch.planning.resolve import resolve_design

if TYPE_CHECKING:
    from torch import nn

    from scheduler.manifest import Manifest
    from scheduler.preprocessing import Preprocessing
    from stretch.capture import Captured
    from stretch.models.load import LoadedModel
    from stretch.transform import BranchedModel
    from stretch.transform.calibrate import SegmentError

Step = Callable[[str], None]

#: Said of a network that was neither calibrated nor trained since it was changed.
UNKNOWN_ACCURACY = (
    "the accuracy of this branched network is unknown: channels and blocks of the original are gone and nothing took their place yet; "
    "train it (`stretch train`), or calibrate it with --images, and measure it with `stretch evaluate`"
)


@dataclass
class Branched:
    """What `branch` made.

    Args:
        plan: The design with its prediction and controls.
        weights_source: ``default``, ``random``, ``file`` or ``given``.
        weights_detail: Which weights.
        warnings: What a person should know.
        seconds: Wall time of each phase.
        model: The branched network; None after a dry run.
        sequential: The sequential control of the same MACs, if there is one.
        calibration: How far each branched segment is from the original's, after calibration.
        bundle: The folder written, if any.
        manifest: Its `bundle.json`.
        preprocessing: What a picture goes through before the model reads it.
    """

    plan: PlanResult
    weights_source: str
    weights_detail: str
    warnings: list[str]
    seconds: dict[str, float] = field(default_factory=dict)
    model: "BranchedModel | None" = None
    sequential: "BranchedModel | None" = None
    calibration: "list[SegmentError]" = field(default_factory=list)
    bundle: Path | None = None
    manifest: "Manifest | None" = None
    preprocessing: "Preprocessing | None" = None

    def to_json(self) -> dict[str, Any]:
        """The object that `stretch branch --json` prints."""
        planned = self.plan.to_json()
        return planned | {
            "weights": {"source": self.weights_source, "detail": self.weights_detail},
            "warnings": [*self.warnings, *planned["warnings"]],
            "seconds": {name: round(value, 3) for name, value in self.seconds.items()},
            "preprocessing": self.preprocessing.to_json() if self.preprocessing else None,
            "calibration": [asdict(error) for error in self.calibration],
            "bundle": str(self.bundle) if self.bundle else None,
            "checks": self.manifest.checks if self.manifest else {},
        }


def branch(
    model: "str | nn.Module",
    device: str | Path | DeviceProfile,
    *,
    out: Path | None = None,
    config: PlanConfig | None = None,
    design: Path | DesignDraft | None = None,
    input_shape: Sequence[int] | None = None,
    weights: str = "default",
    seed: int = 0,
    images: Path | None = None,
    image_count: int = 256,
    controls: bool = True,
    dry_run: bool = False,
    trust_code: bool = False,
    step: Step = lambda what: None,
) -> Branched:
    """Stretch a network into branches for a device and, if asked, write a bundle.

    Args:
        model: A name of `stretch models`, ``package.module:factory``, or a module.
        device: Profile id, path of a profile, or a profile.
        out: Folder of the bundle; an earlier bundle there is replaced. None: no bundle.
        config: Constraints of the search; with a design, precisions and floors of the controls.
        design: A design to build instead of searching for one.
        input_shape: Batch (1), channels, height, width; the model's usual one by default.
        weights: ``default``, ``none`` (random) or a file; ignored for a module.
        seed: Of random weights.
        images: Folder of unlabelled images to calibrate with: every layer and join is
            fitted to what the original computes on them. None: no calibration.
        image_count: Images to take from it, at most.
        controls: Whether the bundle has the sequential controls.
        dry_run: Stop after planning.
        trust_code: Whether ``file.py:factory`` may be executed.
        step: Told what comes next.

    Raises:
        StretchError: Or one of its kinds, in one sentence each: names that do not exist,
            networks that cannot be captured, constraints that no design meets,
            folders that cannot be written.
    """
    seconds: dict[str, float] = {}
    profile = device if isinstance(device, DeviceProfile) else load_device(device)
    draft = load_draft(design) if isinstance(design, Path) else design
    if out is not None and not dry_run:
        from stretch.export.staging import check_target

        check_target(out)
    with _phase("import torch", seconds, step):
        _import_torch()
    with _phase("load", seconds, step):
        loaded = _load(model, weights, seed, trust_code)
    with _phase("capture", seconds, step):
        from stretch.capture import capture

        captured = capture(loaded.module, input_shape or loaded.input_shape, loaded.name)
    with _phase("plan", seconds, step):
        planned = _plan(captured.graph, profile, config, draft)
    result = Branched(
        planned, loaded.weights_source, loaded.weights_detail, list(loaded.warnings), seconds, preprocessing=loaded.preprocessing
    )
    if images is None and planned.changes_network:
        result.warnings.append(UNKNOWN_ACCURACY)
    if dry_run:
        return result
    with _phase("transform", seconds, step):
        from stretch.transform import build

        result.model = build(captured, planned.design)
        if planned.sequential is not None and controls:
            result.sequential = build(captured, planned.sequential.design)
    if images is not None:
        with _phase("calibrate", seconds, step):
            result.calibration = _calibrate(result.model, captured, images, image_count, loaded.preprocessing)
    if out is not None:
        with _phase("export", seconds, step):
            from stretch.export.bundle import export_bundle
            from stretch.export.facts import bundle_facts

            facts = bundle_facts(planned, profile, loaded.weights_source, loaded.weights_detail, loaded.preprocessing)
            result.manifest = export_bundle(
                out,
                captured,
                result.model,
                result.sequential,
                facts,
                __version__,
                controls=controls,
                step=lambda what: step(f"export {what}"),
            )
            result.bundle = out
    return result


@contextmanager
def _phase(name: str, seconds: dict[str, float], step: Step) -> Iterator[None]:
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


def _load(model: "str | nn.Module", weights: str, seed: int, trust_code: bool) -> "LoadedModel":
    from stretch.models.load import USUAL_INPUT, LoadedModel, load_model
    from stretch.models.preprocessing import stated_preprocessing

    if isinstance(model, str):
        return load_model(model, weights=weights, seed=seed, trust_code=trust_code)
    read = stated_preprocessing(model, type(model).__name__)
    return LoadedModel(model.eval(), type(model).__name__, USUAL_INPUT, "given", "the module's own", read)


def _calibrate(
    model: "BranchedModel", captured: "Captured", folder: Path, count: int, preprocessing: "Preprocessing"
) -> "list[SegmentError]":
    import torch

    from stretch.quantize.images import load_images
    from stretch.transform.calibrate import calibrate

    found = [torch.from_numpy(image) for image in load_images(folder, captured.graph.input.shape, count, preprocessing)]
    return calibrate(model, captured, [torch.cat(found[i : i + 32]) for i in range(0, len(found), 32)])


def _plan(graph: OpGraph, profile: DeviceProfile, config: PlanConfig | None, draft: DesignDraft | None) -> PlanResult:
    if draft is None:
        return plan(graph, profile, config)
    align = {name: profile.processor(name).width_slice for name in (*profile.processors, *profile.variants)}
    design = resolve_design(draft, graph, profile.id, align, next(iter(profile.processors)))
    return evaluate(graph, profile, design, config)
