"""Weights found by gradients on unlabelled images, towards what the original computes."""

from stretch.transform.refine.checkpoint import Checkpoint
from stretch.transform.refine.run import MIN_IMAGES, Refined, Refinement, refine

__all__ = ["MIN_IMAGES", "Checkpoint", "Refined", "Refinement", "refine"]
