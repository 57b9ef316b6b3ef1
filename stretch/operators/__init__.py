"""Lowerings of operators by family: in torch, in ONNX and in TFLite.

Every module of this folder is imported with the package, so that a new file is
found as it is. What is known of a kind without torch is in `predictors.operators`.
"""

from predictors.registry import import_modules

import_modules(__name__, __path__)
