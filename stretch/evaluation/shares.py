"""Shares of images, with what that many images can say of all the others."""

import math
from dataclasses import dataclass
from typing import Any

#: 97.5 % quantile of the normal distribution.
Z = 1.959963984540054


@dataclass(frozen=True)
class Share:
    """A share of images with its 95 % interval.

    Args:
        value: Sum of what each image counts, over the images.
        images: How many.
    """

    value: float
    images: int

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's score interval (1927), which stays between 0 and 1 and covers small counts too.

        Where an image may count a part, as in the overlap of two lists, it is
        wider than it need be: a number between 0 and 1 varies no more than a
        yes or no of the same mean.
        """
        n, p = self.images, self.value
        centre = (p + Z * Z / (2 * n)) / (1 + Z * Z / n)
        half = Z / (1 + Z * Z / n) * math.sqrt(p * (1 - p) / n + Z * Z / (4 * n * n))
        return max(0.0, min(p, centre - half)), min(1.0, max(p, centre + half))

    def to_json(self) -> dict[str, Any]:
        """``value``, ``low``, ``high`` and ``images``."""
        low, high = self.interval
        return {"value": self.value, "low": low, "high": high, "images": self.images}
