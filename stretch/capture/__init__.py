"""Any network to an operator graph."""

from stretch.capture.capture import capture
from stretch.capture.results import Captured

__all__ = ["Captured", "capture"]
