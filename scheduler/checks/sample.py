"""What a bundle's whole model gave for a known input when it was written, to be compared with what it gives now."""

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from predictors.errors import StretchError
from scheduler.delegates.base import Array
from scheduler.runtime.inputs import Values
from scheduler.runtime.sequential import relative

#: Key of a manifest's `checks`.
KEY = "sample"

#: Elements of the output that are kept, evenly spread over it.
KEPT = 64

#: Largest difference allowed, relative to the largest kept element: fp32 on another machine or version of a runtime.
TOLERANCE = 1e-3


class Sample(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Elements of the first output for one input, or for inputs by name."""

    seed: int  # Seed of the input (`scheduler.checks.verify.random_input`).
    input_sha256: str  # Of its bytes: numpy may draw other numbers from a seed one day.
    size: int  # Elements of the output.
    values: tuple[float, ...]  # Every so-and-so-many-th of them.

    @classmethod
    def of(cls, x: Values, output: Array, seed: int) -> "Sample":
        """The sample of an output.

        Args:
            x: The input that `seed` gives.
        """
        return cls(seed, digest(x), output.size, tuple(_spread(output)))

    def problem(self, x: Values, output: Array, tolerance: float = TOLERANCE) -> str | None:
        """What is wrong with an output, the end of a sentence; None if nothing is, or `x` is not the input of the sample.

        Args:
            x: The input of `output`.
        """
        if digest(x) != self.input_sha256:
            return None
        if output.size != self.size:
            return f"has an output of {output.size} numbers, {self.size} when the bundle was written"
        now, then = np.array(_spread(output)), np.array(self.values)
        if now.shape != then.shape:
            return f"was written with {len(then)} numbers of its output, {len(now)} are kept of {output.size}"
        difference = relative(now, then) if then.size else 0.0
        if difference <= tolerance:
            return None
        return f"differs by {difference:.2g} of the largest number from what it gave when the bundle was written, {tolerance:g} is allowed"


def read_sample(checks: dict[str, Any]) -> Sample | None:
    """The sample among a manifest's `checks`; None if the bundle was written without one."""
    if KEY not in checks:
        return None
    try:
        return msgspec.convert(checks[KEY], Sample)
    except msgspec.ValidationError as error:
        raise StretchError(f"`checks.{KEY}` of the bundle is damaged: {error}", "write the bundle again with `stretch branch`") from error


def digest(x: Values) -> str:
    """SHA-256 of an input, or of inputs by name, in the order of their names."""
    arrays = [x[name] for name in sorted(x)] if isinstance(x, Mapping) else [x]
    return hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)).hexdigest()


def _spread(output: Array) -> list[float]:
    flat = output.ravel()
    at = np.unique(np.linspace(0, flat.size - 1, min(KEPT, flat.size)).round().astype(int))
    return [float(value) for value in flat[at]]
