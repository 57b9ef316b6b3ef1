"""Verification of a bundle's files and results against its whole model, and of a session's results.

Every tensor of a session is compared with the whole model, and the whole model with its result when the bundle was written.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from predictors.errors import MissingBackendError, StretchError, first_line
from scheduler.bundle.load import MANIFEST, Bundle, bundle_problems, read_bundle
from scheduler.bundle.manifest import SourceFile, SubgraphEntry
from scheduler.bundle.rows import rows_read_by
from scheduler.bundle.signature import public_key
from scheduler.bundle.statements import ROUNDING, statement_problems
from scheduler.bundle.tflite_file import check_same_plan, load_tflite
from scheduler.delegates import LiteRtDelegate
from scheduler.delegates.base import Array
from scheduler.delegates.cpu import load_runtime
from scheduler.delegates.ort_session import open_session
from scheduler.formats.int8_edges import edges
from scheduler.formats.onnx import open_onnx
from scheduler.progress import Progress, silent
from scheduler.runtime.inputs import Values, as_arrays, unwrap_single
from scheduler.runtime.own import SourceFileRunner
from scheduler.runtime.sequential import TOLERANCES, Sequential, allowed_distance, distance, max_error, relative
from scheduler.runtime.session import Session

#: Key of a manifest's `checks`.
KEY = "sample"

#: Maximum number of output elements in a sample, evenly spread over the output.
MAX_VALUES = 64


class Sample(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Elements of the first output for one input, or for several inputs by name."""

    seed: int  # Seed of the input (`scheduler.checks.verify.random_input`).
    input_sha256: str  # SHA-256 of the input's bytes, because a later numpy may draw other numbers from a seed.
    size: int  # Number of elements of the output.
    values: tuple[float, ...]  # Kept elements, evenly spread.

    @classmethod
    def of(cls, x: Values, output: Array, seed: int) -> "Sample":
        """Return the sample of an output.

        Args:
            x: Input drawn from `seed`.
        """
        return cls(seed, digest(x), output.size, tuple(_spread(output)))

    def problem(self, x: Values, output: Array, tolerance: float = TOLERANCES["fp32"]) -> str | None:
        """Return the defect of an output, as the end of a sentence; None if it has none, or if `x` is not the sample's input.

        Args:
            x: The input of `output`.
            tolerance: Largest allowed difference, relative to the largest kept element.
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
        return f"differs by {difference:.2g} of the largest number from its result when the bundle was written, {tolerance:g} is allowed"


def read_sample(checks: dict[str, Any]) -> Sample | None:
    """Return the sample in a manifest's `checks`, or None if it has none."""
    if KEY not in checks:
        return None
    try:
        return msgspec.convert(checks[KEY], Sample)
    except msgspec.ValidationError as error:
        raise StretchError(f"`checks.{KEY}` of the bundle is damaged: {error}", "write the bundle again with `stretch branch`") from error


def digest(x: Values) -> str:
    """Return the SHA-256 of an input, or of several inputs in the order of their names."""
    arrays = [x[name] for name in sorted(x)] if isinstance(x, Mapping) else [x]
    return hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)).hexdigest()


def _spread(output: Array) -> list[float]:
    flat = output.ravel()
    indices = np.unique(np.linspace(0, flat.size - 1, min(MAX_VALUES, flat.size)).round().astype(int))
    return [float(value) for value in flat[indices]]


#: Number of steps of a verification that report progress.
STEPS = 3

#: Largest allowed difference between subgraphs and whole model, relative to the largest output.
TOLERANCE = 1e-4

#: Largest allowed root mean square difference, relative to that of the output,
#: if subgraphs are rounded to int8 and the whole model is not. `stretch export`
#: refuses half of it on its images; verification uses random numbers instead.
ROUNDED = 0.3


class Verification(msgspec.Struct, frozen=True):
    """Result of a verification: whether a bundle is fit to run."""

    bundle: Path  # Folder of the bundle.
    ok: bool  # Whether no problem was found.
    problems: tuple[str, ...]  # Problems, one sentence each.
    max_error: float | None = None  # Largest error of the subgraphs run together, compared with the whole model; None if they were not run.
    tolerance: float | None = TOLERANCE  # Largest allowed `max_error`; None if fp16 or int8 is judged by its distance instead.
    signer: str | None = None  # Fingerprint of the trusted key that signed the bundle; None if none was requested or a problem was found.
    uncompared: str | None = None  # Missing reference for the results, with the reason; None if there is a reference.


def verify_bundle(path: Path, trust: Sequence[Path] = (), progress: Progress = silent) -> Verification:
    """Check schema, files, hashes, graph and the manifest's statements, then compare the bundle with its whole model.

    A TFLite file in the bundle is checked too, and its signatures run if LiteRT is installed.
    The bundle is run only if all other checks pass.

    Args:
        trust: Files with public keys, one of which must have signed the bundle; empty: any author.
        progress: Called with a few words for each of the `STEPS` steps.
    """
    keys = [public_key(key) for key in trust]
    progress("its files")
    try:
        bundle = read_bundle(path, keys)
    except StretchError as error:
        if error.exit_code != 1:
            raise
        return Verification(path, False, (error.message,))
    problems = tuple(bundle_problems(bundle, hashes=True))
    # the statements beyond the graph are checked once the graph is consistent
    problems = problems or tuple(f"{bundle.path / MANIFEST}: {problem}" for problem in statement_problems(bundle.manifest))
    if problems:
        return Verification(path, False, problems)
    x = random_input(bundle)
    try:
        for entry in bundle.manifest.subgraphs:
            if entry.precision == "int8":
                edges(open_onnx(bundle.file(entry.file)).proto)
        progress("its whole model")
        expected = bundle.manifest.name_outputs(as_arrays(Sequential(bundle.file(bundle.manifest.whole)).run(x), bundle.manifest.outputs))
        wrong = source_file_problems(bundle, x)
        if wrong:
            return Verification(path, False, tuple(wrong))
        progress("its subgraphs")
        compared = [_compare(bundle, x, expected, "the subgraphs", None)]
        if bundle.manifest.tflite is not None:
            check_same_plan(load_tflite(bundle.file(bundle.manifest.tflite)), bundle.manifest)
            if LiteRtDelegate.unavailable() is None:
                everywhere = {entry.processor: "litert" for entry in bundle.manifest.subgraphs}
                compared.append(_compare(bundle, x, expected, f"the signatures of {bundle.manifest.tflite}", everywhere))
    except StretchError as error:
        if error.exit_code != 1:
            raise
        return Verification(path, False, (bundle.replace_root(error.message),))
    errors = [comparison.max_error for comparison in compared if comparison.max_error is not None]
    problems = tuple(p for comparison in compared for p in comparison.problems)
    largest, own = max(errors, default=None), uncompared_note(bundle.manifest.own)
    return Verification(path, not problems, problems, largest, compared[0].tolerance, bundle.signer, own)


def _compare(bundle: Bundle, x: Values, expected: Mapping[str, Array], subject: str, mapping: Mapping[str, str] | None) -> Verification:
    """Run the bundle with a mapping, and compare it with the outputs of its whole model; of several outputs, the worst counts."""
    manifest = bundle.manifest
    lower = sorted({entry.precision for entry in manifest.subgraphs} - {"fp32"})
    with Session(bundle, mapping) as session:
        actual = as_arrays(session(x), list(expected))
    problems, errors, tolerances = [], [], []
    for tensor, (name, value) in zip(manifest.outputs, expected.items(), strict=True):
        tolerances.append(allowed_distance(manifest.checks, tensor, default=TOLERANCE))
        output_name = subject if len(expected) == 1 else f"{subject} for the output `{name}`"
        problem, error = _difference(manifest.whole, actual[name], value, output_name, lower, tolerances[-1])
        problems += [problem] if problem else []
        errors += [error] if error is not None else []
    return Verification(bundle.path, not problems, tuple(problems), max(errors, default=None), None if lower else max(tolerances))


def _difference(
    network: str, actual: Array, expected: Array, subject: str, lower: Sequence[str], tolerance: float
) -> tuple[str | None, float | None]:
    """Return a description of the difference of an output from that of the file `network`, or None, and the largest difference."""
    if actual.shape != expected.shape:
        return f"{subject} give {list(actual.shape)}, {network} gives {list(expected.shape)}", None
    for owner, output in ((subject, actual), (network, expected)):
        if not np.isfinite(output).all():
            return f"the output of {owner} contains NaN or infinity for a normal input", None
    error = max_error(actual, expected)
    if not np.isfinite(error):  # the numbers are so large that their difference is not finite
        return f"{subject} differ from {network} by more than a number can say", None
    if not lower:
        problem = f"{subject} differ from {network} by {error:.1e} of its largest output, {tolerance:.0e} is allowed"
        return (problem if error > tolerance else None), error
    moved = distance(actual, expected, "int8")
    problem = f"{subject} in {', '.join(lower)} move the output {moved:.2f} of its size away from {network}, {ROUNDED} is allowed"
    return (None if moved <= ROUNDED else problem), error


def uncompared_note(own: SourceFile | None) -> str | None:
    """Return the reason why results are not compared with the user's own file: random inputs exceed a quantised file's ranges."""
    return None if own is None or own.precision == "fp32" else f"not compared with {own.file}, which computes in {own.precision}"


def source_file_problems(bundle: Bundle, x: Values) -> list[str]:
    """Return the differences of the network from the user's own file, one sentence each; empty if the file is absent or cannot run here.

    An fp32 file is compared with the whole model if the outputs should be the same, else with the captured original.
    """
    manifest, own = bundle.manifest, bundle.manifest.own
    if own is None or uncompared_note(own) or "original" not in manifest.controls:
        return []
    try:
        file = SourceFileRunner(bundle.file(own.file), own)
    except MissingBackendError:
        return []
    inputs = file.as_file_inputs(as_arrays(x, manifest.inputs))
    name = manifest.whole if own.exact else manifest.controls["original"]
    computed = Sequential(bundle.file(name)).run(unwrap_single(inputs))
    actual = dict(zip(manifest.outputs, computed.values() if isinstance(computed, Mapping) else [computed], strict=True))
    problems = []
    for tensor, expected in file.run(inputs).items():
        finite = np.isfinite(expected)
        error = (
            distance(actual[tensor][finite], expected[finite], "fp32") if actual[tensor].shape == expected.shape and finite.any() else 0.0
        )
        most = allowed_distance(manifest.checks, tensor, default=TOLERANCE)
        if actual[tensor].shape != expected.shape or not error <= most:
            problems.append(
                f"{name} differs from the file that was branched, {own.file}, by {error:.1e} of its output, {most:.0e} is allowed"
            )
    return problems


def random_input(bundle: Bundle, seed: int = 0) -> Any:
    """Return normally distributed numbers with the bundle's input shape and type: an array, or several by name."""
    tensors = {tensor.name: tensor for tensor in bundle.manifest.tensors}
    rng = np.random.default_rng(seed)
    return unwrap_single(
        {name: rng.standard_normal(tensors[name].shape).astype(np.dtype(tensors[name].dtype)) for name in bundle.manifest.inputs}
    )


class Reference:
    """A bundle's whole model, which also computes the tensors between subgraphs."""

    def __init__(self, bundle: Bundle) -> None:
        file = bundle.file(bundle.manifest.whole)
        proto = open_onnx(file).proto
        self.names = [value.name for value in proto.graph.output]
        written = {name for node in proto.graph.node for name in node.output}
        crossing = [t.name for t in bundle.manifest.tensors if t.name in written and t.name not in self.names]
        for name in crossing:
            proto.graph.output.add().name = name
        self.names += crossing
        self._session = _session(file, proto.SerializeToString())

    def run(self, x: Values) -> dict[str, Array]:
        """Return the value of each tensor in `names` for an input, or for several inputs by name."""
        return dict(zip(self.names, _run(self._session, x), strict=True))


def run_file(file: Path, x: Values) -> dict[str, Array]:
    """Run the ONNX file of a subgraph on ONNX Runtime, with integers replaced by the reals that they encode."""
    session = _session(file)
    return dict(zip([value.name for value in session.get_outputs()], _run(session, x), strict=True))


def _session(file: Path, content: bytes | None = None) -> Any:
    options = load_runtime().SessionOptions()
    options.intra_op_num_threads = 1
    return open_session(file, ["CPUExecutionProvider"], {"session.disable_quant_qdq": "1"}, options, content)


def _run(session: Any, x: Values) -> list[Array]:
    inputs = as_arrays(x, [value.name for value in session.get_inputs()])
    try:
        arrays: list[Array] = session.run(None, inputs)
    except Exception as error:
        raise StretchError(f"ONNX Runtime cannot run the model on this input: {first_line(error)}") from error
    return arrays


#: Factor on an export's error of a tensor in fp16 or int8 that other inputs may reach; an error as large as the tensor is a fault.
_ROUNDED_MARGIN, _FAULT = 2, 1.0


def allowed_end_to_end(checks: Mapping[str, Any], tensor: str, precision: str) -> float:
    """Return the largest `distance` that is not a fault after other rounded subgraphs, from the errors that the export measured."""
    default = allowed_distance(checks, tensor, precision)
    exported = checks.get("precision")
    stated = exported.get(ROUNDING) if isinstance(exported, dict) and precision != "fp32" else None
    error = stated.get(tensor) if isinstance(stated, dict) else None
    return max(default, min(_ROUNDED_MARGIN * error, _FAULT)) if isinstance(error, float) else default


#: Precisions from the highest to the lowest.
_PRECISIONS = tuple(TOLERANCES)


class CheckAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Comparison of results with a reference."""

    against: str  # File that the results were compared with.
    measure: str  # ``largest`` difference over the largest element, or ``rms`` over rms.
    error: float  # Error of the worst tensor, by that measure.
    tolerance: float  # Largest allowed error.
    tensors: int  # Number of compared tensors.
    stored: bool  # Whether the whole model was also compared with its result when the bundle was written.


@dataclass(frozen=True)
class ReferenceComparison:
    """Results of a session that agree with the reference."""

    check: CheckAnswer  # The comparison.
    max_error: float  # Largest difference of the output over its largest element.
    expected: Values  # Expected output.


def compare_with_reference(session: Session, x: Values) -> ReferenceComparison:
    """Run a session once, and compare the output and every tensor between subgraphs."""
    manifest = session.bundle.manifest
    checks = manifest.checks
    tensors = session.tensors(x)
    reference = Reference(session.bundle)
    expected = reference.run(x)
    stored = _check_whole(session, reference, x, expected)
    precision, worst, compared = "fp32", 0.0, len(manifest.outputs)
    for sub in manifest.subgraphs:
        precision = max(precision, sub.precision, key=_PRECISIONS.index)
        for name in sub.outputs:
            if name not in expected:
                continue
            error, limit = distance(tensors[name], expected[name], precision), allowed_end_to_end(checks, name, precision)
            if not error <= limit:
                raise _fault_error(session, sub, name, tensors, _describe(error, precision, limit), precision)
            worst, compared = max(worst, error), compared + 1
    output, final = (manifest.name_outputs(values) for values in (tensors, expected))
    check_output(session, unwrap_single(output), unwrap_single(final))
    worst = max(worst, *(distance(output[name], final[name], precision) for name in final))
    measure = "largest" if precision == "fp32" else "rms"
    for problem in source_file_problems(session.bundle, x):
        raise StretchError(problem, "write the bundle again with `stretch branch`")
    against, own = manifest.whole, manifest.own
    if own is not None:
        note = uncompared_note(own)
        against += f", {note}" if note else f" and your file, {own.file}"
    tolerance = max(allowed_end_to_end(checks, name, precision) for name in expected)
    check = CheckAnswer(against=against, measure=measure, error=worst, tolerance=tolerance, tensors=compared, stored=stored)
    return ReferenceComparison(check, max_error(output, final), unwrap_single(final))


def check_output(session: Session, output: Values, expected: Values) -> None:
    """Compare a later output with the checked one, and raise StretchError if they differ."""
    manifest = session.bundle.manifest
    precision = max((sub.precision for sub in manifest.subgraphs), key=_PRECISIONS.index)
    names = manifest.results or manifest.outputs
    actual, expected_by_name = (as_arrays(values, names) for values in (output, expected))
    for name, tensor in zip(names, manifest.outputs, strict=True):
        error, limit = distance(actual[name], expected_by_name[name], precision), allowed_end_to_end(manifest.checks, tensor, precision)
        if not error <= limit:
            subject = "the output" if len(expected_by_name) == 1 else f"the output `{name}`"
            raise StretchError(f"{subject} {_describe(error, precision, limit)} {manifest.whole}", _HINT)


_HINT = "run `stretch verify`, and try other delegates with --map"


def _check_whole(session: Session, reference: Reference, x: Values, results: Mapping[str, Array]) -> bool:
    """Compare the whole model with the bundle's sample; return False if the bundle has none."""
    bundle = session.bundle
    network_file, outputs = bundle.manifest.whole, bundle.manifest.outputs
    if not all(np.isfinite(results[name]).all() for name in outputs):
        raise StretchError(
            f"{bundle.file(network_file)} gives NaN or infinity for this input", "write the bundle again with `stretch branch`"
        )
    sample = read_sample(bundle.manifest.checks)
    if sample is None:
        return False
    sample_input = random_input(bundle, sample.seed)
    sample_results = results if digest(sample_input) == digest(x) else reference.run(sample_input)
    if problem := sample.problem(sample_input, sample_results[outputs[0]], allowed_distance(bundle.manifest.checks, outputs[0])):
        raise StretchError(f"{bundle.file(network_file)} {problem}", "write the bundle again with `stretch branch`")
    return True


def _fault_error(
    session: Session, sub: SubgraphEntry, tensor: str, tensors: Mapping[str, Array], difference: str, precision: str
) -> StretchError:
    """Return an error that names the cause: the subgraph's file if that computes the same, else the delegate."""
    bundle = session.bundle
    place = session.subgraph_placements[sub.name]
    recomputed = run_file(bundle.file(sub.file), dict(zip(sub.inputs, rows_read_by(sub, tensors), strict=True)))[tensor]
    actual = tensors[tensor]
    if recomputed.shape == actual.shape and distance(actual, recomputed, precision) <= allowed_distance(
        bundle.manifest.checks, tensor, precision
    ):
        return StretchError(
            f"the output of subgraph `{sub.name}` {difference} {bundle.manifest.whole}: its file {bundle.file(sub.file)} computes something else",
            "write the bundle again with `stretch branch`",
        )
    return StretchError(
        f"the output of subgraph `{sub.name}` on processor `{place.processor}` (delegate `{place.delegate}`) {difference} {bundle.manifest.whole}",
        f"try another delegate with --map {place.processor}=cpu",
    )


def _describe(error: float, precision: str, limit: float) -> str:
    """Return a description of an error, as the middle of a sentence that ends with the reference."""
    limit_text = f"{limit:g} is allowed in {precision}"
    if not np.isfinite(error):
        return "holds NaN or infinity, unlike that of"
    if precision == "fp32":
        return f"is off by {error:.2g} of its largest element ({limit_text}), compared with"
    return f"is off by {error:.2g} of its size ({limit_text}), compared with"
