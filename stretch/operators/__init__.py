"""Lowerings of operators by family: to torch, ONNX and TFLite.

Every module of this folder is imported with the package, so that a new file needs no
registration. Facts of a kind that do not need torch are in `predictors.operators`.
"""

from predictors.registry import import_modules

import_modules(__name__, __path__)
