"""Numbers that a prediction rests on, each with the interval of what it may be instead: kernels, links, contention.

Errors of one number hit every run alike: where the GPU's convolutions are slower
than predicted, they are slower in the branched run and in its controls. So a run
keeps, for each number, the ms that are proportional to it, and a comparison draws
all numbers at once. Times of a processor that was fitted, or that are
those of its relatives, err together, by the interval of the fit; else each kind of
kernel errs for itself, by the uncertainty that the profile states.
"""

from collections.abc import Iterable, Mapping
from functools import reduce
from math import log
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from predictors.devices import DeviceProfile
from predictors.predictor import Estimate

#: Draws of a comparison; a probability of 0.7 is then known to within 0.02.
DRAWS = 2000

#: Intervals hold nine in ten; that is 1.645 standard deviations up and down.
_DEVIATIONS = 1.645

#: How the name of a link's number begins.
LINK = "the link to"

#: Numbers that hang together: what they are called.
LINKS, CONTENTION = "all links", "contention"

#: A link takes these times of what is stated where its profile says no other: public runs of one chip with several runtimes differ so.
LINK_SPREAD = (0.5, 2.0)

#: What others take away lies between half and twice of what is stated, as public runs of six phones spread.
CONTENTION_SPREAD = 2.0

Floats = NDArray[np.float64]


class Unknown(NamedTuple):
    """A number and the 90 % interval of the factor that it may be off by."""

    what: str  # In words, such as ``conv kernels on gpu``.
    low: float  # Lower end.
    high: float  # Upper end.
    group: str = ""  # Numbers that it is usually wrong with together, such as ``times on gpu``.


#: Factors by number: one for each draw, or plain numbers.
Factors = Mapping[Unknown, Any]


def link(processor: str, device: DeviceProfile) -> Unknown:
    """The link between the host and a processor, with the interval that its profile states."""
    stated = device.links[processor].spread
    return Unknown(f"{LINK} {processor}", *(stated.value if stated else LINK_SPREAD), LINKS)


def contention(processor: str) -> Unknown:
    """What a processor loses while others compute."""
    return Unknown(f"contention on {processor}", 1 / CONTENTION_SPREAD, CONTENTION_SPREAD, CONTENTION)


def computing(processor: str) -> str:
    """The group of all numbers that a processor's computing rests on."""
    return f"times on {processor.partition('[')[0]}"


def kernels(estimate: Estimate, device: DeviceProfile) -> dict[Unknown, float]:
    """The computation of an estimate by the numbers it is proportional to, ms."""
    family = estimate.processor.partition("[")[0]
    if not estimate.ms:  # such as a part that launches no kernel: nothing takes time that could be off
        return {}
    if estimate.origin != "roofline":
        what = f"times of {estimate.processor} in {estimate.precision}"
        spread = estimate.low_ms / estimate.ms, estimate.high_ms / estimate.ms
        return {Unknown(what, *spread, computing(family)): estimate.computing_ms}
    off = 1 + device.processors[family].uncertainty.value
    result: dict[Unknown, float] = {}
    for kernel in estimate.kernels:
        key = Unknown(f"{kernel.kernel.cost.kind} kernels on {family}", 1 / off, off, computing(family))
        result[key] = result.get(key, 0.0) + kernel.time.ms
    return result


def added(*parts: Mapping[Unknown, float]) -> dict[Unknown, float]:
    """The sum of several, number by number."""
    return {key: sum(part.get(key, 0.0) for part in parts) for key in dict.fromkeys(key for part in parts for key in part)}


def ms(parts: Mapping[Unknown, float], factors: Factors) -> Any:
    """The time of all parts if their numbers are off by these factors; a number that has none is as predicted."""
    return sum((part * factors.get(key, 1.0) for key, part in parts.items()), 0.0)


def slowest(times: Iterable[Any]) -> Any:
    """The longest of some times, draw by draw."""
    return reduce(np.maximum, times)


def drawn(unknowns: Iterable[Unknown], draws: int = DRAWS, seed: int = 0) -> dict[Unknown, Floats]:
    """Independent factors for each number, log-normal with its interval; a number has the same draws whatever is drawn beside it."""
    result = {}
    for unknown in set(unknowns):
        generator = np.random.default_rng([seed, crc32(unknown.what.encode())])
        middle, width = (log(unknown.low) + log(unknown.high)) / 2, (log(unknown.high) - log(unknown.low)) / 2 / _DEVIATIONS
        result[unknown] = np.exp(middle + width * generator.standard_normal(draws))
    return result


def share(draws: NDArray[np.bool_]) -> float:
    """Probability of what some draws show, as Laplace estimates it: no number of draws makes anything certain."""
    return float((np.sum(draws) + 1) / (draws.size + 2))


def interval(times: Floats) -> tuple[float, float]:
    """Ends that nine in ten draws lie between."""
    low, high = np.quantile(times, (0.05, 0.95))
    return float(low), float(high)
