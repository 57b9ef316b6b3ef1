"""Any convolutional network to an operator graph."""

from stretch.capture.trace import Captured, capture

__all__ = ["Captured", "capture"]
