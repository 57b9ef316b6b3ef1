"""Refinement of weights by gradient descent on unlabelled images, with the original's outputs as targets."""

from stretch.transform.refine.checkpoint import Checkpoint
from stretch.transform.refine.run import MIN_IMAGES, Refined, Refinement, refine

__all__ = ["MIN_IMAGES", "Checkpoint", "Refined", "Refinement", "refine"]
