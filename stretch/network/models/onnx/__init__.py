"""Load ONNX files of any exporter as torch modules that compute the same.

Every module of this folder is imported with the package, so that new files of rules need no registration.
"""

from predictors.registry import import_modules
from stretch.network.models.onnx.network import read_module

__all__ = ["read_module"]

import_modules(__name__, __path__)
