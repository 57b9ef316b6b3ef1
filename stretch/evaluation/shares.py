"""Shares of images, with what that many images can say of all the others."""

import math

import msgspec

#: 97.5 % quantile of the normal distribution.
Z = 1.959963984540054


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """A share of images with its 95 % interval.

    Args:
        value: Sum of what each image counts, over the images.
        low: Lower end of the interval.
        high: Upper end.
        images: How many.
    """

    value: float
    low: float
    high: float
    images: int


def share_of(total: float, images: int) -> Share:
    """A share with Wilson's score interval (1927), which stays between 0 and 1 and covers small counts too.

    Where an image may count a part, as in the overlap of two lists, it is
    wider than it need be: a number between 0 and 1 varies no more than a
    yes or no of the same mean.

    Args:
        total: Sum of what each image counts, at most 1 each.
        images: How many, at least one.
    """
    n, p = images, total / images
    centre = (p + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z / (1 + Z * Z / n) * math.sqrt(p * (1 - p) / n + Z * Z / (4 * n * n))
    return Share(value=p, low=max(0.0, min(p, centre - half)), high=min(1.0, max(p, centre + half)), images=n)
