"""Flags that say what pictures go through before a model reads them, one description for every verb that reads pictures."""

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stretch.cli.options import with_flags

if TYPE_CHECKING:
    from scheduler.bundle.preprocessing import Preprocessing

Mean = Annotated[
    str | None,
    typer.Option(
        help="Mean of red, green and blue of pictures, in 0 to 1, as 0.5,0.5,0.5; by default what the model or its bundle states, else ImageNet's."
    ),
]
Std = Annotated[str | None, typer.Option(help="Standard deviation of each; what is stated by default.")]
Size = Annotated[int | None, typer.Option(help="Shorter side that pictures are resized to before the crop.", min=1)]
Crop = Annotated[
    float | None, typer.Option(help="Instead of --size: share of the shorter side that the crop keeps, what is stated by default.", max=1.0)
]


@dataclass(frozen=True)
class PictureRequest:
    """What is asked of pictures in place of what a model states."""

    mean: Mean = None  # ``--mean``, three numbers separated by commas.
    std: Std = None  # ``--std``, the same.
    size: Size = None  # ``--size``, pixels.
    crop: Crop = None  # ``--crop``, a share.

    def values(self) -> dict[str, Any]:
        """The values of a `Preprocessing` that are asked for."""
        import msgspec

        from predictors.errors import UsageError
        from scheduler.bundle.preprocessing import IMAGENET

        asked = self._read()
        try:
            IMAGENET.having(asked)
        except msgspec.ValidationError as error:
            flag = re.search(r"\$\.(\w+)", str(error))
            name = f"--{flag[1]}" if flag else "a value"
            raise UsageError(
                f"{name} is out of range: {str(error).split(' - at')[0].lower()}", "a crop is a share up to 1, a size is in pixels"
            ) from error
        return asked

    def over(self, stated: "Preprocessing | None") -> "Preprocessing":
        """What a model states, ImageNet's if it states nothing, with what is asked for in its place."""
        from scheduler.bundle.preprocessing import IMAGENET

        return (stated or IMAGENET).having(self.values())

    def _read(self) -> dict[str, Any]:
        """The flags that are given as values, checked as far as the range of one value does not say it."""
        from predictors.errors import UsageError

        if self.size is not None and self.crop is not None:
            raise UsageError("--size and --crop both say how much of a picture is kept", "give one of the two")
        if self.crop is not None and not self.crop > 0:
            raise UsageError(f"--crop {self.crop:g} keeps nothing of a picture", "it is a share above 0, up to 1")
        asked: dict[str, Any] = {"size": self.size, "crop": self.crop}
        if self.mean is not None:
            asked["mean"] = _colours("--mean", self.mean)
        if self.std is not None:
            asked["std"] = _colours("--std", self.std)
            if min(asked["std"]) <= 0:
                raise UsageError(f"--std {self.std} is no standard deviation", "each is above 0, as 0.229,0.224,0.225")
        return {name: value for name, value in asked.items() if value is not None}


def picture_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a verb the flags of pictures in place of its one parameter of type `PictureRequest`; use it as `planner_options`."""
    return with_flags(function, PictureRequest, _flags(), lambda values: PictureRequest(**values))


def _flags() -> Sequence[inspect.Parameter]:
    own = inspect.signature(PictureRequest, eval_str=True).parameters.values()
    return [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own]


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
