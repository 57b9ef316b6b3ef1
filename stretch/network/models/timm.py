"""timm's models, named ``timm:NAME``."""

from typing import ClassVar

import timm
from huggingface_hub import try_to_load_from_cache
from torch import Tensor, nn

from scheduler.bundle.preprocessing import IMAGENET, Preprocessing
from stretch.network.models.families import families
from stretch.network.models.load import timm_preprocessing
from stretch.network.models.weights import check_host


@families.register("timm")
class TimmFamily:
    """Every model that timm lists."""

    prefix: ClassVar[str] = "timm:"

    def names(self) -> list[str]:
        """Return the names of timm's models."""
        return timm.list_models()

    def build(self, name: str) -> nn.Module:
        """Build one model, initialised from torch's global generator."""
        return timm.create_model(name, pretrained=False)

    def input_shape(self, name: str) -> tuple[int, ...]:
        """Return 1 × the input size in timm's configuration."""
        config = timm.get_pretrained_cfg(name)
        return (1, *(config.input_size if config else (3, 224, 224)))

    def preprocessing(self, name: str) -> Preprocessing:
        """Return the preprocessing in timm's configuration; the padding that three models ask for is left out."""
        config = timm.get_pretrained_cfg(name)
        return (timm_preprocessing(config.to_dict()) if config else None) or IMAGENET

    def default_weights(self, name: str) -> tuple[dict[str, Tensor], str] | None:
        """Return the weights that timm calls pretrained, from the local hub folder or the internet."""
        config = timm.get_pretrained_cfg(name)
        if not timm.is_model_pretrained(name) or config is None:
            return None
        files = ("model.safetensors", "pytorch_model.bin")
        if config.hf_hub_id and not any(isinstance(try_to_load_from_cache(config.hf_hub_id, file), str) for file in files):
            check_host("huggingface.co")
        model = timm.create_model(name, pretrained=True)
        return model.state_dict(), f"timm {name}.{config.tag}" if config.tag else f"timm {name}"

    def checked(self) -> frozenset[str]:
        """Return an empty set: no model is tested so far; one that cannot be branched is refused with its reason."""
        return frozenset()
