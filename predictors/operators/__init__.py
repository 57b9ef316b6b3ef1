"""Kinds of operators by family: every module of this folder is imported with the package, so that a new file is found as it is."""

from predictors.kinds import Kind, kinds
from predictors.registry import import_modules

__all__ = ["Kind", "kind_of", "kinds"]

import_modules(__name__, __path__)

#: The kind of a name; raises UnknownNameError, which names the closest, if there is none.
kind_of = kinds.get
