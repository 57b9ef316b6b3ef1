"""Preparation of a picture before a model reads it: a property of the model, which its bundle states."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

from predictors.errors import StretchError, UsageError

_Level = Annotated[float, msgspec.Meta(ge=-1e6, le=1e6)]
_Deviation = Annotated[float, msgspec.Meta(ge=1e-6, le=1e6)]
_Pixels = Annotated[int, msgspec.Meta(ge=1, le=1 << 14)]

#: Forms in which a caller may give a `Preprocessing`.
TABLE_HINT = 'write a table such as {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}; docs/reference/bundle-format.md lists its keys'

#: Maximum number of pixels of a picture after the resize: 200 MB of colours.
MAX_PIXELS = 1 << 26


class Preprocessing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Resize, crop at the centre, normalise."""

    mean: tuple[_Level, _Level, _Level] = (0.485, 0.456, 0.406)  # Of red, green and blue, in 0 to `range`.
    std: tuple[_Deviation, _Deviation, _Deviation] = (0.229, 0.224, 0.225)  # Standard deviation of each.
    crop: Annotated[float, msgspec.Meta(ge=0.01, le=1)] = 0.875  # Share of the shorter side that the crop keeps.
    size: _Pixels | None = None  # Shorter side after the resize, pixels; None for what `crop` asks for.
    #: Interpolation of the resize, by Pillow's names; smaller pictures are averaged.
    interpolation: Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"] = "bilinear"
    squash: bool = False  # Whether the resize gives both sides the size of `crop`, whatever their ratio was.
    channels: Literal["rgb", "bgr"] = "rgb"  # Order in which the model reads the colours.
    range: Literal[1, 255] = 1  # Value of the brightest pixel before the mean is subtracted.

    def resized_size(self, width: int, height: int, target: tuple[int, int]) -> tuple[int, int]:
        """Return the size of a picture of `width` × `height` after the resize, never smaller than `to`, the crop."""
        target_width, target_height = target
        if self.squash and self.size is None:
            size = round(target_width / self.crop), round(target_height / self.crop)
        else:
            shorter_side = min(width, height)
            resized_side = (
                round(shorter_side * max(target_height / height, target_width / width) / self.crop) if self.size is None else self.size
            )
            # as torchvision: the longer side is cut off, not rounded
            size = int(resized_side * width / shorter_side), int(resized_side * height / shorter_side)
        if self.size is None:
            size = max(target_width, size[0]), max(target_height, size[1])
        elif size[0] < target_width or size[1] < target_height:
            raise StretchError(
                f"a picture of {width}×{height} resized to a shorter side of {self.size} is smaller than what the model reads, {target_width}×{target_height}",
                "resize to more with --set preprocessing.size",
            )
        if size[0] * size[1] > MAX_PIXELS:
            raise StretchError(
                f"a picture of {width}×{height} would be resized to {size[0]}×{size[1]}, which is too large",
                "keep more of it with --set preprocessing.crop, resize to less with preprocessing.size, or leave this picture out",
            )
        return size

    def replace(self, values: Mapping[str, Any]) -> "Preprocessing":
        """Return the same preprocessing with other values.

        Args:
            values: By name; others stay as they are, but for a `size` that a `crop` replaces.
        """
        fields: dict[str, Any] = msgspec.to_builtins(self)
        if values.get("crop") is not None:
            fields["size"] = None
        return msgspec.convert(fields | dict(values), Preprocessing)

    def problem(self, shape: Sequence[int]) -> str | None:
        """Return why a model's input of `shape` cannot be read so, as the end of a sentence; None if it can."""
        if len(shape) != 4 or shape[1] != 3:
            return f"is one of colour pictures, the model reads {list(shape)[:8]}"
        if self.size is not None and self.size < min(shape[2:]):
            return f"resizes pictures to {self.size}, the model reads {shape[3]}×{shape[2]}"
        return None

    def to_json(self) -> dict[str, Any]:
        """For the record; `crop` is None where `size` decides."""
        stated: dict[str, Any] = msgspec.to_builtins(self)
        return stated | {"mean": list(self.mean), "std": list(self.std), "crop": None if self.size is not None else self.crop}


#: Most weights of torchvision and timm for ImageNet expect this (224 of 256 pixels); the default where nothing is stated.
IMAGENET = Preprocessing()


def requested_preprocessing(
    stated: Preprocessing, requested: Preprocessing | Mapping[str, Any] | None, shape: Sequence[int]
) -> Preprocessing:
    """Return a caller's preprocessing in place of the model's.

    Args:
        requested: A complete preprocessing, or the values to change; None for the stated one.
        shape: Of the model's input, batch first.
    """
    if requested is None:
        return stated
    try:
        read = stated.replace(msgspec.to_builtins(requested) if isinstance(requested, Preprocessing) else dict(requested))
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise UsageError(f"the requested preprocessing cannot be used: {error}", TABLE_HINT) from error
    if problem := read.problem(shape):
        raise UsageError(f"the requested preprocessing {problem}", "leave it out, or resize to what the model reads or more")
    return read
