"""When requests for an inference come."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from math import isfinite
from typing import Literal

import numpy as np

from predictors.errors import UsageError

#: Random numbers drawn at a time.
_CHUNK = 1024

#: Milliseconds between requests, and requests a second, are at most this and at least one over it.
_MOST = 1e9

_EXAMPLE = "write periodic:MS, as periodic:33.3, or poisson:RATE with requests a second, as poisson:30"


@dataclass(frozen=True)
class Arrivals:
    """Requests that come whether the last one is answered or not."""

    #: ``periodic``: the first at once, then at equal distances; ``poisson``: at random, independently of each other.
    kind: Literal["periodic", "poisson"]
    every_ms: float  # Time between two, on average.

    def times(self, seed: int, user: int = 0) -> Iterator[float]:
        """When they come, ms, without an end; every user's at random times of their own."""
        if self.kind == "periodic":
            for number in count():
                yield number * self.every_ms
        rng, at = np.random.default_rng([seed, 1, user] if user else [seed, 1]), 0.0
        while True:
            for gap in rng.exponential(self.every_ms, _CHUNK).tolist():
                at += gap
                yield at


def parse_arrivals(text: str) -> Arrivals:
    """Arrivals as they are written on the command line: ``periodic:MS`` or ``poisson:RATE``, the rate in requests a second."""
    form = re.fullmatch(r"(periodic|poisson):(.+)", text.strip())
    if form is None:
        raise UsageError(f"`{text}` says nothing of arrivals", _EXAMPLE)
    try:
        number = float(form[2])
    except ValueError:
        raise UsageError(f"`{text}` has something in the place of a number", _EXAMPLE) from None
    if not (isfinite(number) and 1 / _MOST <= number <= _MOST):
        raise UsageError(f"requests cannot come as `{text}` says", f"the number is from {1 / _MOST:g} to {_MOST:g}")
    return Arrivals("periodic", number) if form[1] == "periodic" else Arrivals("poisson", 1e3 / number)
