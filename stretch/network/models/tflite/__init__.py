"""TFLite files of any converter as torch modules: `read_module` gives one that computes what the file does.

Every module of this folder is imported with the package, so that a new file of rules is found as it is.
"""

from predictors.registry import import_modules
from stretch.network.models.tflite.network import read_module

__all__ = ["read_module"]

import_modules(__name__, __path__)
