"""The rewrites, a file a family; importing the package registers them in `predictors.rewrite.rewrites`."""

from predictors.registry import import_modules
from predictors.rewrite import Rewrite, changing, exact, laid_out, rewrites, rewritten

__all__ = ["Rewrite", "changing", "exact", "laid_out", "rewrites", "rewritten"]

import_modules(__name__, __path__)
