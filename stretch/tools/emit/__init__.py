"""Networks as packages of plain torch code, independent of nn-stretch: one class per branch, weights in safetensors."""

from predictors.registry import import_modules

import_modules(__name__, __path__)
