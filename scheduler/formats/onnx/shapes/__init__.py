"""Shapes and work of the operators that a bundle's files may contain, computed before any runtime opens the files.

Runtimes and the `onnx` package trust a file and start to allocate and compute;
the rules here only multiply numbers, and refuse operators that do not fit.
No operator contains a graph, a loop or a random number, and the size of each
result follows from shapes and short constants alone.
"""

from predictors.registry import import_modules
from scheduler.formats.onnx.shapes.node import RULES

__all__ = ["RULES"]

import_modules(__name__, __path__)
