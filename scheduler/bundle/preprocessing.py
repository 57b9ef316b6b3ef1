"""What a picture goes through before a model reads it: a model's own property, which its bundle carries."""

from typing import Annotated, Any, Literal

import msgspec

from predictors.errors import StretchError

_Level = Annotated[float, msgspec.Meta(ge=-1e6, le=1e6)]
_Deviation = Annotated[float, msgspec.Meta(ge=1e-6, le=1e6)]
_Pixels = Annotated[int, msgspec.Meta(ge=1, le=1 << 14)]

#: Of a picture after the resize: 200 MB of colours.
MAX_PIXELS = 1 << 26


class Preprocessing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Resize, crop at the centre, normalise.

    Args:
        mean: Of red, green and blue, in 0 to `range`.
        std: Standard deviation of each.
        crop: Share of the shorter side that the crop keeps.
        size: Shorter side after the resize, pixels; None for what `crop` asks for.
        interpolation: Of the resize, as Pillow knows it; what gets smaller is averaged.
        squash: Whether the resize gives both sides what `crop` asks for, whatever their ratio was.
        channels: Order in which the model reads the colours.
        range: What the brightest pixel is before the mean is taken off.
    """

    mean: tuple[_Level, _Level, _Level] = (0.485, 0.456, 0.406)
    std: tuple[_Deviation, _Deviation, _Deviation] = (0.229, 0.224, 0.225)
    crop: Annotated[float, msgspec.Meta(ge=0.01, le=1)] = 0.875
    size: _Pixels | None = None
    interpolation: Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"] = "bilinear"
    squash: bool = False
    channels: Literal["rgb", "bgr"] = "rgb"
    range: Literal[1, 255] = 1

    def scaled(self, width: int, height: int, to: tuple[int, int]) -> tuple[int, int]:
        """Size of a picture of `width` × `height` after the resize, never smaller than `to`, the crop.

        Raises:
            StretchError: If `size` leaves less than the crop, or the picture would be too large to hold.
        """
        wide, high = to
        if self.squash and self.size is None:
            found = round(wide / self.crop), round(high / self.crop)
        else:
            least = min(width, height)
            shorter = round(least * max(high / height, wide / width) / self.crop) if self.size is None else self.size
            # as torchvision: the longer side is cut off, not rounded
            found = int(shorter * width / least), int(shorter * height / least)
        if self.size is None:
            found = max(wide, found[0]), max(high, found[1])
        elif found[0] < wide or found[1] < high:
            raise StretchError(
                f"a picture of {width}×{height} resized to a shorter side of {self.size} is smaller than what the model reads, {wide}×{high}",
                "resize to more with --size",
            )
        if found[0] * found[1] > MAX_PIXELS:
            raise StretchError(
                f"a picture of {width}×{height} would be resized to {found[0]}×{found[1]}, which is too large",
                "keep more of it with --crop, resize to less with --size, or leave this picture out",
            )
        return found

    def to_json(self) -> dict[str, Any]:
        """For the record; `crop` is None where `size` decides."""
        stated: dict[str, Any] = msgspec.to_builtins(self)
        return stated | {"mean": list(self.mean), "std": list(self.std), "crop": None if self.size is not None else self.crop}


#: What torchvision's and timm's weights for ImageNet mostly expect (224 of 256 pixels), taken where nothing is stated.
IMAGENET = Preprocessing()
