"""Third stage: the branched network and its control, and what they compute made like the original."""

from pathlib import Path

import torch

from scheduler.bundle.preprocessing import IMAGENET, Preprocessing
from stretch.capture import Captured
from stretch.planning.result import PlanResult
from stretch.quantize.images import load_images
from stretch.transform import BranchedModel, build
from stretch.transform.calibrate import SegmentError, calibrate

#: Images that are computed at a time.
BATCH = 32


def build_control(captured: Captured, planned: PlanResult) -> BranchedModel | None:
    """The sequential control of the same multiply-accumulates; None where the plan has none."""
    return None if planned.sequential is None else build(captured, planned.sequential.design)


def calibrate_on(
    model: BranchedModel, captured: Captured, folder: Path, count: int, preprocessing: Preprocessing | None = None
) -> list[SegmentError]:
    """Fit every layer and join of a branched network to what the original computes on images.

    Args:
        model: The branched network; changed in place.
        captured: The original.
        folder: Of unlabelled images.
        count: Images to take, at most.
        preprocessing: What a picture goes through before the model reads it; ImageNet's if None.

    Returns:
        How far each segment was from the original's, and is.

    Raises:
        StretchError: If there are no images, or they do not fit.
    """
    found = [torch.from_numpy(image) for image in load_images(folder, captured.graph.input.shape, count, preprocessing or IMAGENET)]
    return calibrate(model, captured, [torch.cat(found[i : i + BATCH]) for i in range(0, len(found), BATCH)])
