"""What a design must keep to (paper 003, equations 4 to 6 and section 4.3): a file for each rule, which is planned with, named and asked for as it is."""

from predictors.registry import import_modules
from stretch.planning.constraints.base import Bound, Constraint, Limit, all_constraints, constraints

__all__ = ["Bound", "Constraint", "Limit", "all_constraints", "constraints"]

import_modules(__name__, __path__)
