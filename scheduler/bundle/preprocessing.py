"""Preparation of a picture for a model: a property of the model, stated in its bundle."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

from predictors.errors import StretchError, UsageError

_Level = Annotated[float, msgspec.Meta(ge=-1e6, le=1e6)]
_Deviation = Annotated[float, msgspec.Meta(ge=1e-6, le=1e6)]
_Pixels = Annotated[int, msgspec.Meta(ge=1, le=1 << 14)]

#: Hint on the form of a `Preprocessing`.
TABLE_HINT = 'write a table such as {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}; docs/reference/bundle-format.md lists its keys'

#: Maximum number of pixels of a picture after the resize: 200 MB of colours.
MAX_PIXELS = 1 << 26


class Preprocessing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Resize, crop at the centre, normalise."""

    mean: tuple[_Level, _Level, _Level] = (0.485, 0.456, 0.406)  # Mean of red, green and blue, on a scale from 0 to `range`.
    std: tuple[_Deviation, _Deviation, _Deviation] = (0.229, 0.224, 0.225)  # Standard deviation of each colour.
    crop: Annotated[float, msgspec.Meta(ge=0.01, le=1)] = 0.875  # Share of the shorter side that the crop keeps.
    size: _Pixels | None = None  # Shorter side after the resize, pixels; None to derive it from `crop`.
    #: Interpolation of the resize, by Pillow's names; pixels are averaged when a picture shrinks.
    interpolation: Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"] = "bilinear"
    squash: bool = False  # Whether the resize gives both sides the size of `crop`, whatever their ratio.
    channels: Literal["rgb", "bgr"] = "rgb"  # Order of the colours in the model's input.
    range: Literal[1, 255] = 1  # Value of the brightest pixel before the mean is subtracted.

    def resized_size(self, width: int, height: int, target: tuple[int, int]) -> tuple[int, int]:
        """Return the size of a picture of `width` × `height` after the resize, never smaller than `target`, the crop."""
        target_width, target_height = target
        if self.squash and self.size is None:
            size = round(target_width / self.crop), round(target_height / self.crop)
        else:
            shorter_side = min(width, height)
            resized_side = (
                round(shorter_side * max(target_height / height, target_width / width) / self.crop) if self.size is None else self.size
            )
            # as in torchvision: the longer side is truncated, not rounded
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
            values: Values by name; other values stay the same, except for a `size`, which a new `crop` replaces.
        """
        fields: dict[str, Any] = msgspec.to_builtins(self)
        if values.get("crop") is not None:
            fields["size"] = None
        return msgspec.convert(fields | dict(values), Preprocessing)

    def problem(self, shape: Sequence[int]) -> str | None:
        """Return why pictures cannot be prepared for a model's input of `shape`, as the end of a sentence; None if they can."""
        if len(shape) != 4 or shape[1] != 3:
            return f"is one of colour pictures, the model reads {list(shape)[:8]}"
        if self.size is not None and self.size < min(shape[2:]):
            return f"resizes pictures to {self.size}, the model reads {shape[3]}×{shape[2]}"
        return None

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values for a record; `crop` is None if `size` decides."""
        stated: dict[str, Any] = msgspec.to_builtins(self)
        return stated | {"mean": list(self.mean), "std": list(self.std), "crop": None if self.size is not None else self.crop}


#: Preprocessing of most ImageNet weights of torchvision and timm (224 of 256 pixels); the default for models that state none.
IMAGENET = Preprocessing()


def requested_preprocessing(
    stated: Preprocessing, requested: Preprocessing | Mapping[str, Any] | None, shape: Sequence[int]
) -> Preprocessing:
    """Return the preprocessing that a caller requests in place of the model's.

    Args:
        requested: A complete preprocessing, or the values to change; None for the stated one.
        shape: Shape of the model's input, batch first.
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
