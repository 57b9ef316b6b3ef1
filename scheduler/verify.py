"""Whether a bundle is whole and computes what its own whole model computes."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from predictors.errors import StretchError
from scheduler.bundle import Bundle, bundle_problems, read_bundle
from scheduler.delegates.base import Array
from scheduler.sequential import Sequential, max_error
from scheduler.session import Session

#: Largest difference allowed between subgraphs and whole model, relative to the largest output.
TOLERANCE = 1e-4

#: Least cosine of the output with the whole model's where subgraphs have another
#: precision than it: rounding costs less, a missing or wrong scale more.
LEAST_COSINE = 0.9


@dataclass(frozen=True)
class Verification:
    """Result of `verify_bundle`.

    Args:
        problems: What is wrong, one sentence each.
        max_error: Of the subgraphs run together against the whole model; None
            if they were not run.
    """

    problems: tuple[str, ...]
    max_error: float | None

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def verify_bundle(path: Path) -> Verification:
    """Check schema, files, hashes and graph, then run the bundle against its whole model.

    Nothing is run as long as anything else is wrong.

    Args:
        path: The bundle's folder.

    Raises:
        MissingBackendError: If ONNX Runtime is missing.
    """
    try:
        bundle = read_bundle(path)
    except StretchError as error:
        return Verification((error.message,), None)
    problems = tuple(bundle_problems(bundle, hashes=True))
    if problems:
        return Verification(problems, None)
    x = random_input(bundle)
    try:
        with Session(bundle) as session:
            got = session(x)
        expected = Sequential(bundle.file(bundle.manifest.whole)).run(x)
    except StretchError as error:
        if error.exit_code != 1:
            raise
        return Verification((error.message,), None)
    if got.shape != expected.shape:
        return Verification((f"the subgraphs give {list(got.shape)}, {bundle.manifest.whole} gives {list(expected.shape)}",), None)
    if not np.isfinite(got).all():
        return Verification(("the output contains NaN or infinity for a normal input",), None)
    difference = max_error(got, expected)
    lower = sorted({entry.precision for entry in bundle.manifest.subgraphs} - {"fp32"})
    if lower:
        alike = _cosine(got, expected)
        if not alike >= LEAST_COSINE:
            problem = f"the output's cosine with {bundle.manifest.whole} is {alike:.3f}, at least {LEAST_COSINE} is expected in {', '.join(lower)}"
            return Verification((problem,), difference)
        return Verification((), difference)
    if difference > TOLERANCE:
        return Verification(
            (f"the subgraphs differ from {bundle.manifest.whole} by {difference:.1e} of its largest output, {TOLERANCE:.0e} is allowed",),
            difference,
        )
    return Verification((), difference)


def _cosine(a: Array, b: Array) -> float:
    product = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(np.vdot(a, b)) / product if product else float(np.array_equal(a, b))


def random_input(bundle: Bundle, seed: int = 0) -> Array:
    """Normally distributed numbers of the bundle's input shape and type."""
    manifest = bundle.manifest
    tensor = next(t for t in manifest.tensors if t.name == manifest.input)
    return np.random.default_rng(seed).standard_normal(tensor.shape).astype(np.dtype(tensor.dtype))
