"""Any network to an operator graph."""

from stretch.capture.capture import capture
from stretch.capture.captured import Captured

__all__ = ["Captured", "capture"]
