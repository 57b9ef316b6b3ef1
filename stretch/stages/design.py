"""Designs as people write them, and the answer on one that was built."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from predictors.devices import DeviceProfile
from predictors.graph import OpGraph
from scheduler.bundle.manifest import WeightsInfo
from stretch.planning.design.branch_design import BranchDesign, DesignDraft, load_draft
from stretch.planning.design.scale import aligns, resolve_design
from stretch.planning.result import PlanAnswer

if TYPE_CHECKING:
    from scheduler.bundle.agreement import Agreement
    from stretch.transform.calibrate import SegmentError
    from stretch.transform.refine import Refined


def read_design(design: Path | DesignDraft, graph: OpGraph, profile: DeviceProfile) -> BranchDesign:
    """A design as a person writes it, completed for a network on a device."""
    draft = load_draft(design) if isinstance(design, Path) else design
    align = aligns(profile, (*profile.processors, *profile.variants))
    return resolve_design(draft, graph, profile.id, align, next(iter(profile.processors)))


class BranchedAnswer(PlanAnswer, frozen=True, kw_only=True):
    """A plan and what was made of it."""

    weights: WeightsInfo  # That the network began with.
    seconds: dict[str, float]  # Wall time of each phase.
    preprocessing: dict[str, Any] | None  # Preparation of a picture before the model reads it; None: ImageNet's.
    calibration: "list[SegmentError]"  # Each branched segment that was calibrated.
    #: Error of the outputs before and after refining, on images that were held back; None where that was not asked for.
    refinement: "Refined | None"
    agreement: "Agreement | None"  # With the original, on images that were held back; None where that was not measured.
    bundle: str | None  # Folder of the bundle, where one was written.
    written: str | None  # Network that the bundle runs, ``branched``; None where none was written.
    withheld: bool  # Whether no design was written because `recommended` names another choice and branches were not insisted on.
    checks: dict[str, Any]  # Comparisons from the writing of the bundle; empty without one.
    unjudged: bool = False  # Whether the network was read from a file that could not be run to compare the network with it.
