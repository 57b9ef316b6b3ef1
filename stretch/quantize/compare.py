"""How much of a float result a rounded one keeps."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

#: Decibels given for results that are equal, where the ratio has no number.
EQUAL_DB = 200.0


@dataclass(frozen=True)
class Loss:
    """Difference of a result from its reference, over all pairs."""

    cosine: float  # Of the angle between the two; blind to a wrong scale.
    snr_db: float  # Power of the reference over that of the difference, decibels.

    def exceeds(self, min_cosine: float) -> bool:
        """Whether more is lost than a cosine of `min_cosine` allows, in direction or in size."""
        return not (self.cosine >= min_cosine and self.snr_db >= least_snr_db(min_cosine))

    def to_json(self) -> dict[str, float]:
        """Both numbers, rounded to what they mean."""
        return {"cosine": round(self.cosine, 6), "snr_db": round(self.snr_db, 2)}


def least_snr_db(min_cosine: float) -> float:
    """Decibels below which a result is further from its reference than a cosine allows.

    Two tensors of equal length r at a cosine c are r·√(2·(1 − c)) apart.
    """
    distance = 2 * (1 - min_cosine)
    return EQUAL_DB if distance <= 0 else min(EQUAL_DB, -10 * math.log10(distance))


def loss(pairs: Iterable[tuple[Array, Array]]) -> Loss:
    """Loss of results against references, both taken as one long vector each."""
    product = reference = result = difference = 0.0
    for expected, got in pairs:
        a, b = expected.ravel().astype(np.float64), got.ravel().astype(np.float64)
        with np.errstate(all="ignore"):  # infinity and NaN: told below
            product += float(a @ b)
            reference += float(a @ a)
            result += float(b @ b)
            difference += float((a - b) @ (a - b))
    if difference == 0:
        return Loss(1.0, EQUAL_DB)
    if not math.isfinite(difference):
        return Loss(0.0, -EQUAL_DB)
    cosine = product / math.sqrt(reference * result) if reference and result else 0.0
    snr = 10 * math.log10(reference / difference) if reference else -EQUAL_DB
    return Loss(cosine, max(-EQUAL_DB, min(EQUAL_DB, snr)))


def top1_agreement(pairs: Iterable[tuple[Array, Array]]) -> float:
    """Share of pairs of class scores, batch × classes, with the same best class."""
    same = [int(np.argmax(expected)) == int(np.argmax(got)) for expected, got in pairs]
    return sum(same) / len(same)
