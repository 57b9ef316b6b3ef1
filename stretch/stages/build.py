"""Third stage: the branched network and its control, refined if asked, and the images for that and for the comparison with the original."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from scheduler.bundle.preprocessing import IMAGENET, Preprocessing
from scheduler.progress import Progress, silent
from stretch.capture import Captured
from stretch.evaluation.agreement import ALIKE, Compared, compare
from stretch.planning.result import PlanResult
from stretch.planning.sentences import Mention, Sentence
from stretch.quantize.images import load_images
from stretch.transform import BranchedModel, build
from stretch.transform.calibrate import MIN_IMAGES
from stretch.transform.refine import Refined, Refinement, refine

#: Images that are computed at a time.
BATCH = 32

#: Images that are held back to compare with, at most: a share of so many is known to a few hundredths.
HELD_BACK = 200

#: Of a network that agrees less often it is said that it needs training.
CLOSE = 0.95

#: Where a folder has no others, one of so many is held back from calibration.
ONE_OF = 4


def build_control(captured: Captured, planned: PlanResult) -> BranchedModel | None:
    """The sequential control of the same multiply-accumulates; None where the plan has none."""
    return None if planned.sequential is None else build(captured, planned.sequential.design)


@dataclass(frozen=True)
class Images:
    """Unlabelled images of a folder.

    Args:
        fitted: Batches that calibration looks at, (n, channels, height, width).
        held_back: Batches of others, for comparing; empty where there are too few images.
    """

    fitted: list[torch.Tensor]
    held_back: list[torch.Tensor]


def divide_images(
    folder: Path, captured: Captured, count: int, preprocessing: Preprocessing | None = None, held_back: int = HELD_BACK
) -> Images:
    """Read a folder's images, and hold some back from calibration to compare with.

    Both are spread over the folder. Where it has more images than calibration takes, the others are
    held back; where it has not, every fourth one, as long as calibration has enough.

    Args:
        folder: Of unlabelled images.
        captured: The original.
        count: Images for calibration, at most.
        preprocessing: What a picture goes through before the model reads it; ImageNet's if None.
        held_back: Images to hold back, at most.

    Raises:
        StretchError: If there are no images, or they do not fit.
    """
    found = load_images(folder, captured.graph.input.shape, count + held_back, preprocessing or IMAGENET)
    back = max(len(found) - count, min(len(found) // ONE_OF, held_back, len(found) - MIN_IMAGES), 0)
    chosen = {i * len(found) // back for i in range(back)}
    sets: list[list[torch.Tensor]] = [[], []]
    for i, image in enumerate(found):
        sets[i in chosen].append(torch.from_numpy(image))
    fitted, others = ([torch.cat(some[i : i + BATCH]) for i in range(0, len(some), BATCH)] for some in sets)
    return Images(fitted, others)


def refined(
    model: BranchedModel, captured: Captured, images: Sequence[torch.Tensor], minutes: float, progress: Progress = silent
) -> Refined:
    """Refine a calibrated network for some minutes, on a GPU where there is one; it is back where it was afterwards.

    Args:
        model: The network.
        captured: The original.
        images: Batches that it was calibrated with, (n, channels, height, width).
        minutes: Wall time.
        progress: Told now and then how far it is.
    """
    place = next(model.parameters()).device
    try:
        return refine(model.to("cuda") if torch.cuda.is_available() else model, captured, images, Refinement(minutes), progress)
    finally:
        model.to(place)


def compare_on(model: BranchedModel, captured: Captured, images: Sequence[torch.Tensor]) -> tuple[Compared | None, list[str]]:
    """How far a branched network agrees with its original on images that were held back, and what to say of it.

    Args:
        model: The branched network.
        captured: The original.
        images: Batches, (n, channels, height, width); none where there were too few.
    """
    if not images:
        return None, ["too few images to hold any back, so how far this network agrees with the original was not measured"]
    found = compare(model, captured, images)
    agreement = found.agreement
    if agreement.value is None:
        return found, ["the outputs are no list of class scores: agreement is told as their error relative to the original's"]
    if found.alike is not None and found.alike >= ALIKE:
        return found, [
            f"the original sees the same class in {found.alike:.0%} of the {agreement.images} images held back: "
            "that the branched network sees it too means little"
        ]
    if agreement.value < CLOSE:
        return found, [
            Sentence(
                "the branched network sees the original's class in {} of {} images held back: train it (`stretch train`), or let the "
                "segments that change most stay as they are with {} and {}",
                f"{agreement.value:.0%}",
                str(agreement.images),
                Mention("min_agreement", CLOSE),
                Mention("repair"),
            )
        ]
    return found, []
