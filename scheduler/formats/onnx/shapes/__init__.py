"""Shapes and work of the operators that a bundle's files may hold, worked out before any runtime sees them.

Runtimes and the `onnx` package believe what a file says and start to allocate
and compute; the rules here only multiply numbers, and refuse what does not fit.
None of the operators holds a graph, a loop or a random number, and the size of
what each makes follows from shapes and short constants alone.
"""

from predictors.registry import import_modules
from scheduler.formats.onnx.shapes.node import RULES

__all__ = ["RULES"]

import_modules(__name__, __path__)
