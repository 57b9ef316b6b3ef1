"""Shares of images, with what that many images can say of all the others."""

import math
from collections.abc import Mapping

import msgspec

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
