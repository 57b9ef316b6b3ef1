"""Second stage: the design, searched for or read."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from predictors.devices import DeviceProfile
from predictors.graph import OpGraph
from stretch.planning.config import PlanConfig
from stretch.planning.cost.accuracy import AccuracySource
from stretch.planning.design.branch_design import BranchDesign, DesignDraft, load_draft
from stretch.planning.design.scale import aligns, resolve_design
from stretch.planning.plan import evaluate, plan
from stretch.planning.result import PlanAnswer, PlanResult

if TYPE_CHECKING:
    from scheduler.bundle.agreement import Agreement
    from stretch.transform.calibrate import SegmentError
    from stretch.transform.refine import Refined


def read_design(design: Path | DesignDraft, graph: OpGraph, profile: DeviceProfile) -> BranchDesign:
    """A design as a person writes it, completed for a network on a device."""
    draft = load_draft(design) if isinstance(design, Path) else design
    align = aligns(profile, (*profile.processors, *profile.variants))
    return resolve_design(draft, graph, profile.id, align, next(iter(profile.processors)))


class WeightsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Weights that a network began with."""

    source: str  # ``default``, ``random``, ``file`` or ``given``.
    detail: str  # Which weights.


class BranchedAnswer(PlanAnswer, frozen=True, kw_only=True):
    """A plan and what was made of it."""

    weights: WeightsAnswer  # That the network began with.
    seconds: dict[str, float]  # Wall time of each phase.
    preprocessing: dict[str, Any] | None  # What a picture goes through before the model reads it; None: ImageNet's.
    calibration: "list[SegmentError]"  # Each branched segment that was calibrated.
    #: Error of the outputs before and after refining, on images that were held back; None where that was not asked for.
    refinement: "Refined | None"
    agreement: "Agreement | None"  # With the original, on images that were held back; None where that was not measured.
    bundle: str | None  # Folder of the bundle, where one was written.
    written: str | None  # What the bundle runs, ``branched``; None where none was written.
    withheld: bool  # Whether none was written because `recommended` is something else, and nobody asked for branches all the same.
    checks: dict[str, Any]  # What was compared as the bundle was written; empty without one.


def decide_design(
    graph: OpGraph,
    profile: DeviceProfile,
    config: PlanConfig | None = None,
    design: Path | DesignDraft | None = None,
    accuracy_source: AccuracySource | None = None,
) -> PlanResult:
    """The design to build, with its prediction and what it is compared with.

    Args:
        accuracy_source: What predicts the accuracy of designs; the file that `config` names if None.
    """
    if design is None:
        return plan(graph, profile, config, accuracy_source)
    return evaluate(graph, profile, read_design(design, graph, profile), config, accuracy_source)
