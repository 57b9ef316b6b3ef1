"""Apply a design to a torch module."""

from stretch.transform.build import build
from stretch.transform.model import Branch, BranchedModel, BranchedSegment

__all__ = ["Branch", "BranchedModel", "BranchedSegment", "build"]
