"""What the main job tells, as plain data: JSON and the terminal's report both read this struct, whose fields are the JSON's keys."""

from typing import TYPE_CHECKING, Any

import msgspec

from scheduler.bundle.agreement import Agreement
from stretch.planning.answer import PlanAnswer

if TYPE_CHECKING:
    from stretch.transform.calibrate import SegmentError
    from stretch.transform.refine import Refined


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
    agreement: Agreement | None  # With the original, on images that were held back; None where that was not measured.
    bundle: str | None  # Folder of the bundle, where one was written.
    written: str | None  # What the bundle runs, ``branched``; None where none was written.
    withheld: bool  # Whether none was written because `recommended` is something else, and nobody asked for branches all the same.
    checks: dict[str, Any]  # What was compared as the bundle was written; empty without one.
