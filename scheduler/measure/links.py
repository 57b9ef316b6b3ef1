"""What it costs to hand a tensor to a processor and to take one back, from networks that hardly compute."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Handover:
    """A network that was run for its hand-over."""

    in_bytes: int  # Bytes of its input.
    out_bytes: int  # Bytes of its output.
    ms: float  # Time of a run, that of its kernels taken away.


@dataclass(frozen=True)
class LinkTimes:
    """What hand-overs cost."""

    fixed_ms: float  # An exchange, there and back.
    to_gbs: float  # Rate on the way to the processor, 10⁹ bytes a second.
    back_gbs: float  # Rate on the way back.


#: No link is believed to be faster: what crosses nothing at all.
MOST_GBS = 1000.0


def fit_link(runs: Sequence[Handover]) -> LinkTimes:
    """Fixed cost and rates, none of them negative, by least squares on the relative error.

    Args:
        runs: Of different sizes, at least three.
    """
    from scipy.optimize import nnls

    times = np.maximum([run.ms for run in runs], 1e-4)
    rows = np.array([[1.0, run.in_bytes / 1e6, run.out_bytes / 1e6] for run in runs])
    (fixed, to, back), _ = nnls(rows / times[:, None], np.ones(len(runs)))
    return LinkTimes(float(fixed), *(MOST_GBS if per_mb * MOST_GBS <= 1 else 1 / per_mb for per_mb in (float(to), float(back))))
