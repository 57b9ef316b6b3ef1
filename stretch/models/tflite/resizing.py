"""Images in another size, as TFLite samples them: by torch's own function where it is the same, else by products with matrices."""

import numpy as np
import torch.nn.functional as F

from predictors.errors import StretchError
from stretch.models.builder import shape_of
from stretch.models.sampling import blended, chosen
from stretch.models.tflite.site import TfliteSite, TfliteView, rule


def _sizes(site: TfliteSite) -> list[int]:
    sizes = site.numbers(1, "size")
    if len(sizes) != 2 or min(sizes) < 1 or max(sizes) > 1 << 16:
        raise StretchError(f"it resizes to {sizes}")
    return sizes


def _places(new: int, old: int, *, aligned: bool, half: bool) -> np.ndarray:
    """Where each new pixel lies among the old ones."""
    scale = (old - 1) / (new - 1) if aligned and new > 1 else old / new
    at = np.arange(new, dtype=np.float64)
    return (at + 0.5) * scale - 0.5 if half else at * scale


@rule("RESIZE_BILINEAR")
def _bilinear(site: TfliteSite) -> TfliteView:
    x, sizes = site.image(), _sizes(site)
    aligned, half = bool(site.settings.get("align_corners")), bool(site.settings.get("half_pixel_centers"))
    if aligned != half:
        return TfliteView(site.builder.call(F.interpolate, x, size=sizes, mode="bilinear", align_corners=aligned), "image")
    places = [_places(new, old, aligned=aligned, half=half) for new, old in zip(sizes, shape_of(x)[2:], strict=True)]
    return TfliteView(blended(site.builder, x, places, site.name), "image")


@rule("RESIZE_NEAREST_NEIGHBOR")
def _nearest(site: TfliteSite) -> TfliteView:
    """Torch rounds i · old / new down."""
    x, sizes = site.image(), _sizes(site)
    aligned, half = bool(site.settings.get("align_corners")), bool(site.settings.get("half_pixel_centers"))
    places = [_chosen(new, old, aligned, half) for new, old in zip(sizes, shape_of(x)[2:], strict=True)]
    nearest = [np.arange(new) * old // new for new, old in zip(sizes, shape_of(x)[2:], strict=True)]
    if all((a == b).all() for a, b in zip(places, nearest, strict=True)):
        return TfliteView(site.builder.call(F.interpolate, x, size=sizes), "image")
    return TfliteView(chosen(site.builder, x, places, site.name), "image")


def _chosen(new: int, old: int, aligned: bool, half: bool) -> np.ndarray:
    """The old pixel for each new one (`GetNearestNeighbor` of LiteRT's reference kernels), in single precision as there."""
    scale = np.float32((old - 1) / (new - 1)) if aligned and new > 1 else np.float32(old / new)
    at = (np.arange(new, dtype=np.float32) + np.float32(0.5 if half else 0.0)) * scale
    floor = np.floor(at + np.float32(0.5)) if aligned else np.floor(at)
    return np.clip(floor, 0, old - 1).astype(np.int64)
