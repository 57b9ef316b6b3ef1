"""Shares of images, with what that many images can say of all the others."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

#: Classes of the longer list.
LONG = 5

#: 97.5 % quantile of the normal distribution.
Z = 1.959963984540054

#: Where a network answers one class for so large a share of the images, another one that always answers it agrees as often: that
#: says nothing of the two, and no agreement is given.
ALIKE = 0.9


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """A share of images with its 95 % interval."""

    value: float  # Sum of what each image counts, over the images.
    low: float  # Lower end of the interval.
    high: float  # Upper end.
    images: int  # How many.


def most_frequent(classes: Mapping[int, int]) -> float:
    """Share of the images for which a network answers the class that it answers most often; 0 without images."""
    return max(classes.values(), default=0) / max(1, sum(classes.values()))


def one_sided(classes: Mapping[int, int]) -> str:
    """Why no agreement is given, in words."""
    several = f"{len(classes)} classes" if len(classes) != 1 else "one class"
    return (
        f"the original answers {several} for {sum(classes.values())} images, {most_frequent(classes):.0%} of them alike: agreement is not "
        f"given where one class has {ALIKE:.0%} or more"
    )


def share_of(total: float, images: int) -> Share:
    """A share with Wilson's score interval (1927), which stays between 0 and 1 and covers small counts too.

    Where an image may count a part, as in the overlap of two lists, it is
    wider than it need be: a number between 0 and 1 varies no more than a
    yes or no of the same mean.
    """
    n, p = images, total / images
    centre = (p + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z / (1 + Z * Z / n) * math.sqrt(p * (1 - p) / n + Z * Z / (4 * n * n))
    return Share(value=p, low=max(0.0, min(p, centre - half)), high=min(1.0, max(p, centre + half)), images=n)


@dataclass
class AgreementSums:
    """Sums over images of what two networks answer."""

    images: int = 0
    same: float = 0.0  # Images with the same best class.
    shared: float = 0.0  # Shares of the five best classes that both have.
    wrong: float = 0.0  # Squared errors.
    total: float = 0.0  # Squared outputs of the original.
    classes: Counter[int] = field(
        default_factory=Counter
    )  # Images by the class that the original answers; none where outputs are no classes.

    def add(self, outputs: Array, originals: Array) -> None:
        """Count a batch of outputs, (images, …)."""
        self.images += len(originals)
        self.wrong += float(np.square(outputs.astype(np.float64) - originals).sum())
        self.total += float(np.square(originals.astype(np.float64)).sum())
        if ranks(originals):
            ours, theirs = best_classes(outputs), best_classes(originals)
            self.same += float((ours[:, 0] == theirs[:, 0]).sum())
            self.shared += float((ours[:, :, None] == theirs[:, None, :]).sum()) / LONG
            self.classes.update(theirs[:, 0].tolist())

    @property
    def diverse(self) -> bool:
        """Whether the original's answers differ from image to image, so that agreement says something."""
        return bool(self.classes) and most_frequent(self.classes) < ALIKE

    @property
    def error(self) -> float:
        """Root of the squared error over the root of the square."""
        return math.sqrt(self.wrong / self.total) if self.total else float(self.wrong > 0)


def ranks(output: Any) -> bool:
    """Whether an output, (images, …), is a list of scores of which the best is a class."""
    return len(output.shape) == 2 and output.shape[1] > 1


def best_classes(scores: Array) -> NDArray[np.intp]:
    """The best classes of each image, best first; of equal scores the class that comes first."""
    return np.argsort(-scores, axis=1, kind="stable")[:, :LONG]
