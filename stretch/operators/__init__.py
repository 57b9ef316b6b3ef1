"""Lowerings of operators by family: in torch, in ONNX and in TFLite.

Every module of this folder is imported with the package, so that a new file is
found as it is. Facts of a kind that need no torch are in `predictors.operators`.
"""

from predictors.registry import import_modules

import_modules(__name__, __path__)
