"""Stage between building and writing: a network refined on unlabelled images, and compared with the original before and after."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from scheduler.bundle.agreement import Agreement
from scheduler.progress import Progress, silent
from stretch.capture import Captured
from stretch.evaluation.agreement import Compared
from stretch.stages.build import Images, compare_on
from stretch.transform import BranchedModel
from stretch.transform.refine import Checkpoint, Refined, Refinement, refine

#: Warning if the refinement did not improve the network.
KEPT = "refining brought the network no closer to the original on images held back, so its weights stay as they were"


@dataclass(frozen=True)
class Outcome:
    """What came of refining a network."""

    refinement: Refined  # Errors on the images that the steps left out; where the start was kept, the same after as before.
    before: Compared | None  # Comparison with the original on the images held back, before; None where there were too few.
    after: Compared | None  # The same of what was kept.
    kept: str  # ``refined``, or ``start`` where no step brought the network closer, or it then agreed less often.
    warnings: list[str]  # What a person should know.


def refine_and_compare(
    model: BranchedModel,
    captured: Captured,
    images: Images,
    how: Refinement,
    checkpoint: Checkpoint | None = None,
    progress: Progress = silent,
) -> Outcome:
    """Refine a network where it can be refined fastest, and keep its start unless it is as close to the original afterwards.

    Closer is what sees the original's class more often, or as often with outputs that are less far off.

    The images held back have no part in the steps, nor in which state of them is the best; they decide between two
    networks, the first and the best.
    """
    progress("compare")
    before, said_before = compare_on(model, captured, images.held_back)
    start = {key: value.clone() for key, value in model.state_dict().items()}
    refinement = refined(model, captured, images.fitted, how, progress, checkpoint)
    progress("compare")
    after, said = compare_on(model, captured, images.held_back)
    if refinement.after < refinement.before and not (before and after and _worse(after.agreement, before.agreement)):
        return Outcome(refinement, before, after, "refined", said)
    model.load_state_dict(start)
    return Outcome(replace(refinement, after=refinement.before), before, before, "start", [*said_before, KEPT])


def refined(
    model: BranchedModel,
    captured: Captured,
    images: Sequence[torch.Tensor],
    how: Refinement,
    progress: Progress = silent,
    checkpoint: Checkpoint | None = None,
) -> Refined:
    """Refine a network, on a GPU where there is one; it is back where it was afterwards.

    Args:
        images: Batches that it was calibrated with, (n, channels, height, width).
    """
    place = next(model.parameters()).device
    try:
        return refine(model.to("cuda") if torch.cuda.is_available() else model, captured, images, how, progress, checkpoint)
    finally:
        model.to(place)


def _worse(after: Agreement, before: Agreement) -> bool:
    """Whether a network sees the original's class less often, or as often with outputs that are further off; outputs alone where they are no classes."""
    return (after.value or 0.0, -after.error) < (before.value or 0.0, -before.error)
