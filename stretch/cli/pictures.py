"""Flags of image preprocessing, shared by all verbs that read images."""

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
        help="Mean of red, green and blue, in 0 to 1, such as 0.5,0.5,0.5. Default: that of the model or its bundle, else ImageNet's."
    ),
]
Std = Annotated[str | None, typer.Option(help="Standard deviation of red, green and blue. Default: that of the model.")]
Size = Annotated[int | None, typer.Option(help="Size of the shorter side that images are resized to before the crop.", min=1)]
Crop = Annotated[
    float | None,
    typer.Option(help="Instead of --size: share of the shorter side that the crop keeps. Default: that of the model.", max=1.0),
]


@dataclass(frozen=True)
class PictureRequest:
    """Preprocessing that overrides that of the model."""

    mean: Mean = None  # ``--mean``, three numbers separated by commas.
    std: Std = None  # ``--std``, the same.
    size: Size = None  # ``--size``, pixels.
    crop: Crop = None  # ``--crop``, a share.

    def values(self) -> dict[str, Any]:
        """The overridden fields of `Preprocessing`."""
        import msgspec

        from predictors.errors import UsageError
        from scheduler.bundle.preprocessing import IMAGENET

        preprocessing = self._read()
        try:
            IMAGENET.having(preprocessing)
        except msgspec.ValidationError as error:
            flag = re.search(r"\$\.(\w+)", str(error))
            name = f"--{flag[1]}" if flag else "a value"
            raise UsageError(
                f"{name} is out of range: {str(error).split(' - at')[0].lower()}", "a crop is a share up to 1, a size is in pixels"
            ) from error
        return preprocessing

    def over(self, stated: "Preprocessing | None") -> "Preprocessing":
        """A model's preprocessing, or ImageNet's, with these overrides."""
        from scheduler.bundle.preprocessing import IMAGENET

        return (stated or IMAGENET).having(self.values())

    def _read(self) -> dict[str, Any]:
        """Values of the flags, checked beyond the range of a single value."""
        from predictors.errors import UsageError

        if self.size is not None and self.crop is not None:
            raise UsageError("--size and --crop both say how much of a picture is kept", "give one of the two")
        if self.crop is not None and not self.crop > 0:
            raise UsageError(f"--crop {self.crop:g} keeps nothing of a picture", "it is a share above 0, up to 1")
        settings: dict[str, Any] = {"size": self.size, "crop": self.crop}
        if self.mean is not None:
            settings["mean"] = _colours("--mean", self.mean)
        if self.std is not None:
            settings["std"] = _colours("--std", self.std)
            if min(settings["std"]) <= 0:
                raise UsageError(f"--std {self.std} is no standard deviation", "each is above 0, as 0.229,0.224,0.225")
        return {name: value for name, value in settings.items() if value is not None}


def picture_options(function: Callable[..., None]) -> Callable[..., None]:
    """Replace a verb's parameter of type `PictureRequest` by the flags of preprocessing; used like `planner_options`."""
    return with_flags(function, PictureRequest, _flags(), lambda values: PictureRequest(**values))


def _flags() -> Sequence[inspect.Parameter]:
    fields = inspect.signature(PictureRequest, eval_str=True).parameters.values()
    return [field.replace(kind=inspect.Parameter.KEYWORD_ONLY) for field in fields]


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
