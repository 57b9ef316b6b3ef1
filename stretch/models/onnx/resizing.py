"""Images in another size, as ONNX samples them: by torch's own function where it is the same, else by products and choices."""

from collections.abc import Callable, Sequence

import numpy as np
import torch.nn.functional as F
from torch import fx

from predictors.errors import StretchError
from stretch.models.onnx.site import OnnxSite, rule
from stretch.models.sampling import blended, chosen

#: How close to a half a place is one, for the runtime: in single precision few are.
_HALF = 1e-5


def _nearer(at: np.ndarray, up: bool) -> np.ndarray:
    """The nearer whole number; of halves the larger or the smaller one."""
    low = np.floor(at)
    part = at - low
    return np.asarray(low + np.where(np.abs(part - 0.5) < _HALF, up, part > 0.5))


_ROUNDED: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round_prefer_floor": lambda at: _nearer(at, False),
    "round_prefer_ceil": lambda at: _nearer(at, True),
}


@rule("Upsample", "Resize")
def _resize(site: OnnxSite) -> fx.Node:
    """Before opset 11 pixels are counted from the corner."""
    mode, coordinates = site.attrs.get("mode", "nearest"), site.attrs.get("coordinate_transformation_mode", "half_pixel")
    if site.op == "Upsample" or site.opset < 11:
        coordinates = "asymmetric"
    size, scales = _resized(site)
    if len(size) != 4 or size[:2] != site.shape[:2] or "axes" in site.attrs:
        raise StretchError(f"it resizes {list(site.shape)} to {list(size)}")
    if size == site.shape:
        # Runtimes copy it then, even where its scale is a little more than 1.
        return site.builder.method("clone", site.x)
    wanted, factors = list(size[2:]), scales[2:]
    if mode == "nearest":
        return _nearest(site, coordinates, wanted, factors)
    smooth, aligned = bool(site.attrs.get("antialias", 0)), coordinates == "align_corners"
    current = aligned or coordinates == "half_pixel" or (coordinates == "pytorch_half_pixel" and all(n > 1 for n in wanted))
    exact = all(abs(factor * old - new) < 1e-3 for factor, old, new in zip(factors, site.shape[2:], wanted, strict=True))
    if mode == "linear" and not smooth and not (current and (aligned or exact)):
        return blended(site.builder, site.x, _places(site, coordinates, wanted, factors), site.name)
    if not current:
        raise StretchError(f"it resizes with coordinates `{coordinates}`")
    if not (aligned or exact):
        raise StretchError(f"it resizes {list(site.shape)} by {', '.join(f'{factor:g}' for factor in factors)}, no whole number of pixels")
    if mode == "cubic" and abs(site.attrs.get("cubic_coeff_a", -0.75) + 0.75) > 1e-6:
        raise StretchError("its cubic function is not torch's")
    named = {"linear": "bilinear", "cubic": "bicubic"}[mode]
    return site.builder.call(F.interpolate, site.x, size=wanted, mode=named, align_corners=aligned, antialias=smooth)


def _places(site: OnnxSite, coordinates: str, wanted: Sequence[int], factors: Sequence[float]) -> list[np.ndarray]:
    """Where each new row and column lies among the old ones (ONNX operators, Resize), in single precision as runtimes have it."""
    places = []
    for old, new, scale in zip(site.shape[2:], wanted, factors, strict=True):
        at, factor = np.arange(new, dtype=np.float32), np.float32(scale)
        match coordinates:
            case "asymmetric":
                places.append(at / factor)
            case "align_corners":
                places.append(at * np.float32(old - 1) / np.float32(new - 1) if new > 1 else at)
            case "pytorch_half_pixel" if new == 1:
                places.append(at)
            case "half_pixel" | "pytorch_half_pixel":
                places.append((at + np.float32(0.5)) / factor - np.float32(0.5))
            case "half_pixel_symmetric":
                places.append(old / 2 * (1 - new / (factor * old)) + (at + 0.5) / factor - 0.5)
            case _:
                raise StretchError(f"it resizes with coordinates `{coordinates[:40]}`")
    return places


def _nearest(site: OnnxSite, coordinates: str, wanted: list[int], factors: Sequence[float]) -> fx.Node:
    how = site.attrs.get("nearest_mode", "floor" if site.opset < 11 else "round_prefer_floor")
    if how not in _ROUNDED:
        raise StretchError(f"it rounds by `{how[:40]}`")
    places = [
        np.clip(_ROUNDED[how](at), 0, old - 1).astype(np.int64)
        for at, old in zip(_places(site, coordinates, wanted, factors), site.shape[2:], strict=True)
    ]
    return chosen(site.builder, site.x, places, site.name)


def _resized(site: OnnxSite) -> tuple[tuple[int, ...], list[float]]:
    """The shape that a resizing makes, by scales or, in later opsets, to sizes; and the scales."""
    sizes = site.optional(3, "sizes")
    if sizes is not None and sizes.size:
        size = tuple(int(n) for n in sizes)
        return size, [new / old for new, old in zip(size, site.shape, strict=False)]
    scales = site.attrs.get("scales")
    if scales is None:
        scales = site.known(1 if site.op == "Upsample" or site.opset < 11 else 2, "scales").ravel()
    if len(scales) != len(site.shape) or not all(0 < scale < 1 << 16 for scale in scales):
        raise StretchError(f"it has {len(scales)} scales for {len(site.shape)} axes")
    size = tuple(int(np.float32(n) * np.float32(scale)) for n, scale in zip(site.shape, scales, strict=True))
    if min(size) < 1:
        raise StretchError(f"it resizes {list(site.shape)} to {list(size)}")
    return size, [float(scale) for scale in scales]
