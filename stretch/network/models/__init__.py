"""Models by name: one file per family, loaded with checked weights."""

from stretch.network.models.families import Family, families, model_names
from stretch.network.models.load import LoadedModel, load_model

__all__ = ["Family", "LoadedModel", "families", "load_model", "model_names"]
