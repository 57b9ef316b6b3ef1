"""What a design must keep to (paper 003, equations 4 to 6 and section 4.3): a file for each rule.

Every module of this folder is imported with the package, so that a file with a
constraint of its own is found as it is: planned with, named where it leaves no
design, and asked for by flag, recipe key and argument.
"""

from predictors.registry import import_modules
from stretch.planning.constraints.base import Bound, Constraint, Limit, all_constraints, constraints

__all__ = ["Bound", "Constraint", "Limit", "all_constraints", "constraints"]

import_modules(__name__, __path__)
