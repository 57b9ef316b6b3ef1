"""What a model says of the pictures it reads."""

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from predictors.errors import StretchError
from scheduler.bundle.preprocessing import IMAGENET, TABLE_HINT, Preprocessing


def stated_preprocessing(module: Any, name: str) -> Preprocessing:
    """What a module states in its attribute ``preprocessing``, or as timm's do; ImageNet's else.

    Args:
        module: A model; ``preprocessing`` is a `Preprocessing`, or a table of its values.
    """
    stated = getattr(module, "preprocessing", None)
    if stated is None:
        return timm_preprocessing(getattr(module, "pretrained_cfg", None) or getattr(module, "default_cfg", None)) or IMAGENET
    try:
        table = msgspec.to_builtins(stated) if isinstance(stated, Preprocessing) else stated
        return msgspec.convert(table, Preprocessing)
    except msgspec.ValidationError as error:
        raise StretchError(
            f"the `preprocessing` of `{name}` cannot be used: {error}",
            TABLE_HINT,
        ) from error


def timm_preprocessing(config: Any) -> Preprocessing | None:
    """What a configuration of timm's says, None if it is none for colour pictures."""
    size = config.get("input_size") if isinstance(config, Mapping) else None
    if not size or len(size) != 3 or size[0] != 3:
        return None
    height = size[1]
    # timm rounds the side before the crop down
    crop = height / math.floor(height / (config.get("crop_pct") or IMAGENET.crop))
    interpolation = config.get("interpolation")
    try:
        return msgspec.convert(
            {
                "mean": config.get("mean") or IMAGENET.mean,
                "std": config.get("std") or IMAGENET.std,
                "crop": crop,
                # `random` is for training
                "interpolation": IMAGENET.interpolation if interpolation in (None, "", "random") else interpolation,
                "squash": config.get("crop_mode") == "squash",
            },
            Preprocessing,
        )
    except msgspec.ValidationError:
        return None
