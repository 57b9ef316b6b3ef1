"""Whether a bundle is whole and computes what its own whole model computes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from predictors.errors import StretchError
from scheduler.bundle.load import MANIFEST, Bundle, bundle_problems, read_bundle
from scheduler.bundle.signature import public_key
from scheduler.bundle.statements import statement_problems
from scheduler.bundle.tflite_file import check_belongs, load_tflite
from scheduler.delegates import LiteRtDelegate
from scheduler.delegates.base import Array
from scheduler.formats.int8_edges import edges
from scheduler.formats.onnx import open_onnx
from scheduler.progress import Progress, silent
from scheduler.runtime.distance import allowed
from scheduler.runtime.inputs import Values, as_arrays, plain
from scheduler.runtime.sequential import Sequential, max_error
from scheduler.runtime.session import Session

#: Steps of a verification that report progress.
STEPS = 3

#: Largest difference allowed between subgraphs and whole model, relative to the largest output.
TOLERANCE = 1e-4

#: Largest root mean square difference allowed, relative to that of the output,
#: where subgraphs are rounded to int8 and the whole model is not. `stretch export`
#: refuses half of it on its images; verification takes random numbers instead.
ROUNDING = 0.3


@dataclass(frozen=True)
class Verification:
    """Result of `verify_bundle`."""

    problems: tuple[str, ...]  # What is wrong, one sentence each.
    max_error: float | None  # Of the subgraphs run together against the whole model; None if they were not run.
    tolerance: float | None = TOLERANCE  # Largest `max_error` allowed; None where int8 is judged by `ROUNDING`.
    signer: str | None = None  # Fingerprint of the trusted key that it is signed with; None if none was asked for, or something is wrong.

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def verify_bundle(path: Path, trust: Sequence[Path] = (), progress: Progress = silent) -> Verification:
    """Check schema, files, hashes, graph and what is stated of them, then run the bundle against its whole model.

    A TFLite file in it is checked too, and its signatures run where LiteRT is installed.
    Nothing is run as long as anything else is wrong.

    Args:
        trust: Files with public keys, with one of which it has to be signed; empty: whoever made it.
        progress: Called with a few words for each of its `STEPS`.
    """
    keys = [public_key(key) for key in trust]
    progress("its files")
    try:
        bundle = read_bundle(path, keys)
    except StretchError as error:
        if error.exit_code != 1:
            raise
        return Verification((error.message,), None)
    problems = tuple(bundle_problems(bundle, hashes=True)) or _statements(bundle)
    if problems:
        return Verification(problems, None)
    x = random_input(bundle)
    try:
        for entry in bundle.manifest.subgraphs:
            if entry.precision == "int8":
                edges(open_onnx(bundle.file(entry.file)).proto)
        progress("its whole model")
        expected = plain(bundle.manifest.named(as_arrays(Sequential(bundle.file(bundle.manifest.whole)).run(x), bundle.manifest.outputs)))
        progress("its subgraphs")
        compared = [_compared(bundle, x, expected, "the subgraphs", None)]
        if bundle.manifest.tflite is not None:
            check_belongs(load_tflite(bundle.file(bundle.manifest.tflite)), bundle.manifest)
            if LiteRtDelegate.unavailable() is None:
                everywhere = {entry.processor: "litert" for entry in bundle.manifest.subgraphs}
                compared.append(_compared(bundle, x, expected, f"the signatures of {bundle.manifest.tflite}", everywhere))
    except StretchError as error:
        if error.exit_code != 1:
            raise
        return Verification((bundle.named(error.message),), None)
    errors = [comparison.max_error for comparison in compared if comparison.max_error is not None]
    problems = tuple(p for comparison in compared for p in comparison.problems)
    return Verification(problems, max(errors, default=None), compared[0].tolerance, bundle.signer)


def _statements(bundle: Bundle) -> tuple[str, ...]:
    """What is wrong with what the manifest states beside its graph, which holds together."""
    return tuple(f"{bundle.path / MANIFEST}: {problem}" for problem in statement_problems(bundle.manifest))


def _compared(bundle: Bundle, x: Values, expected: Values, what: str, mapping: Mapping[str, str] | None) -> Verification:
    """Run the bundle, placed as `mapping` says, against what its whole model computes; of several outputs, the worst counts."""
    lower = sorted({entry.precision for entry in bundle.manifest.subgraphs} - {"fp32"})
    with Session(bundle, mapping) as session:
        got = session(x)
    manifest = bundle.manifest
    comparisons = [
        _difference(
            manifest.whole,
            output,
            value,
            what if name is None else f"{what} for the output `{name}`",
            lower,
            allowed(manifest.checks, tensor, usual=TOLERANCE),
        )
        for tensor, (name, output, value) in zip(manifest.outputs, _pairs(got, expected), strict=True)
    ]
    problems = tuple(problem for comparison in comparisons for problem in comparison.problems)
    errors = [comparison.max_error for comparison in comparisons if comparison.max_error is not None]
    tolerances = [comparison.tolerance for comparison in comparisons if comparison.tolerance is not None]
    return Verification(problems, max(errors, default=None), max(tolerances, default=None))


def _pairs(got: Values, expected: Values) -> list[tuple[str | None, Array, Array]]:
    """Each output with its name, where there are several, and what was expected."""
    if isinstance(expected, Mapping) and isinstance(got, Mapping):
        return [(name, got[name], value) for name, value in expected.items()]
    return [(None, np.asarray(got), np.asarray(expected))]


def _difference(whole: str, got: Array, expected: Array, what: str, lower: Sequence[str], tolerance: float) -> Verification:
    """Compare one output with that of the file `whole`."""
    if got.shape != expected.shape:
        return Verification((f"{what} give {list(got.shape)}, {whole} gives {list(expected.shape)}",), None)
    for whose, output in ((what, got), (whole, expected)):
        if not np.isfinite(output).all():
            return Verification((f"the output of {whose} contains NaN or infinity for a normal input",), None)
    difference = max_error(got, expected)
    if not np.isfinite(difference):  # of numbers so large that their difference is none
        return Verification((f"{what} differ from {whole} by more than a number can say",), None)
    if lower:
        distance = float(np.linalg.norm(got - expected)) / (float(np.linalg.norm(expected)) or 1.0)
        if not distance <= ROUNDING:
            problem = f"{what} in {', '.join(lower)} move the output {distance:.2f} of its size away from {whole}, {ROUNDING} is allowed"
            return Verification((problem,), difference, None)
        return Verification((), difference, None)
    if difference > tolerance:
        problem = f"{what} differ from {whole} by {difference:.1e} of its largest output, {tolerance:.0e} is allowed"
        return Verification((problem,), difference, tolerance)
    return Verification((), difference, tolerance)


def random_input(bundle: Bundle, seed: int = 0) -> Any:
    """Normally distributed numbers of the bundle's input shape and type: an array, or by name where there are several inputs."""
    tensors = {tensor.name: tensor for tensor in bundle.manifest.tensors}
    rng = np.random.default_rng(seed)
    return plain({name: rng.standard_normal(tensors[name].shape).astype(np.dtype(tensors[name].dtype)) for name in bundle.manifest.inputs})
