"""Networks as packages of plain torch code: a class a branch, weights in safetensors, nothing of nn-stretch in it."""

from predictors.registry import import_modules

import_modules(__name__, __path__)
