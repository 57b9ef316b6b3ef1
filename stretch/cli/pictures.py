"""Flags that say what pictures go through before a model reads them."""

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scheduler.bundle.preprocessing import Preprocessing


def asked_preprocessing(
    stated: "Preprocessing | None", *, mean: str | None = None, std: str | None = None, size: int | None = None, crop: float | None = None
) -> "Preprocessing":
    """What a model states, ImageNet's if it states nothing, with what is asked for in its place.

    Args:
        stated: What is known of the model.
        mean: ``--mean``, three numbers separated by commas.
        std: ``--std``, the same.
        size: ``--size``, pixels.
        crop: ``--crop``, a share.

    Raises:
        UsageError: If a value is out of range, or `size` and `crop` are both given.
    """
    import msgspec

    from predictors.errors import UsageError
    from scheduler.bundle.preprocessing import IMAGENET, Preprocessing

    if size is not None and crop is not None:
        raise UsageError("--size and --crop both say how much of a picture is kept", "give one of the two")
    if crop is not None and not crop > 0:
        raise UsageError(f"--crop {crop:g} keeps nothing of a picture", "it is a share above 0, up to 1")
    asked: dict[str, Any] = {}
    if mean is not None:
        asked["mean"] = _colours("--mean", mean)
    if std is not None:
        asked["std"] = _colours("--std", std)
        if min(asked["std"]) <= 0:
            raise UsageError(f"--std {std} is no standard deviation", "each is above 0, as 0.229,0.224,0.225")
    if size is not None:
        asked["size"] = size
    if crop is not None:
        asked |= {"crop": crop, "size": None}
    try:
        return msgspec.convert(msgspec.to_builtins(stated or IMAGENET) | asked, Preprocessing)
    except msgspec.ValidationError as error:
        flag = re.search(r"\$\.(\w+)", str(error))
        name = f"--{flag[1]}" if flag else "a value"
        raise UsageError(
            f"{name} is out of range: {str(error).split(' - at')[0].lower()}", "a crop is a share up to 1, a size is in pixels"
        ) from error


def _colours(flag: str, text: str) -> tuple[float, float, float]:
    import math

    from predictors.errors import UsageError

    try:
        red, green, blue = (float(part) for part in text.split(","))
    except ValueError as error:
        raise UsageError(f"{flag} {text} is not three numbers", f"write it as {flag} 0.485,0.456,0.406") from error
    if not all(math.isfinite(value) for value in (red, green, blue)):
        raise UsageError(f"{flag} {text} is not three numbers", f"write it as {flag} 0.485,0.456,0.406")
    return red, green, blue
