"""What the main job tells, as plain data: JSON and the terminal's report both read this struct, whose fields are the JSON's keys."""

from typing import TYPE_CHECKING, Any

import msgspec

from scheduler.bundle.agreement import Agreement
from stretch.planning.answer import PlanAnswer

if TYPE_CHECKING:
    from stretch.transform.calibrate import SegmentError
    from stretch.transform.refine import Refined


class WeightsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Weights that a network began with.

    Args:
        source: ``default``, ``random``, ``file`` or ``given``.
        detail: Which weights.
    """

    source: str
    detail: str


class BranchedAnswer(PlanAnswer, frozen=True, kw_only=True):
    """A plan and what was made of it.

    Args:
        weights: That the network began with.
        seconds: Wall time of each phase.
        preprocessing: What a picture goes through before the model reads it; None: ImageNet's.
        calibration: Each branched segment that was calibrated.
        refinement: Error of the outputs before and after refining, on images that were held back; None where that was not asked for.
        agreement: With the original, on images that were held back; None where that was not measured.
        bundle: Folder of the bundle, where one was written.
        written: What the bundle runs, ``branched``; None where none was written.
        withheld: Whether none was written because `recommended` is something else, and nobody asked for branches all the same.
        checks: What was compared as the bundle was written; empty without one.
    """

    weights: WeightsAnswer
    seconds: dict[str, float]
    preprocessing: dict[str, Any] | None
    calibration: "list[SegmentError]"
    refinement: "Refined | None"
    agreement: Agreement | None
    bundle: str | None
    written: str | None
    withheld: bool
    checks: dict[str, Any]
