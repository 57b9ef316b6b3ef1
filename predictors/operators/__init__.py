"""Kinds of operators by family: importing the package imports every module of its folder, so that a new file registers itself."""

from predictors.kinds import Kind, kinds
from predictors.registry import import_modules

__all__ = ["Kind", "kind_of", "kinds"]

import_modules(__name__, __path__)

#: Returns the kind with a name; raises UnknownNameError with the closest name for an unknown one.
kind_of = kinds.get
