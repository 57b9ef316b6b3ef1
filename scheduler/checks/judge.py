"""Whether a session gives the results of its bundle: every tensor against the whole model, and that against what it gave when it was written."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from predictors.errors import StretchError, first_line
from scheduler.bundle.load import Bundle
from scheduler.bundle.manifest import SubgraphEntry
from scheduler.bundle.rows import read_by
from scheduler.checks.sample import digest, read_sample
from scheduler.checks.verify import random_input
from scheduler.delegates.base import Array
from scheduler.delegates.cpu import load_runtime
from scheduler.formats.onnx import open_onnx
from scheduler.runtime.distance import TOLERANCE, allowed, distance
from scheduler.runtime.inputs import Values, as_arrays, plain
from scheduler.runtime.sequential import max_error
from scheduler.runtime.session import Session


class Reference:
    """A bundle's whole model, which also tells the tensors between subgraphs.

    Where its weights lie outside of the file it tells the output alone.
    """

    def __init__(self, bundle: Bundle) -> None:
        file = bundle.file(bundle.manifest.whole)
        opened = open_onnx(file)
        proto = opened.proto
        self.names = [value.name for value in proto.graph.output]
        source: str | bytes = str(file)
        if not opened.external:
            written = {name for node in proto.graph.node for name in node.output}
            crossing = [t.name for t in bundle.manifest.tensors if t.name in written and t.name not in self.names]
            for name in crossing:
                proto.graph.output.add().name = name
            self.names += crossing
            source = proto.SerializeToString()
        self._session = _session(source, file)

    def run(self, x: Values) -> dict[str, Array]:
        """Value of each tensor of `names` for an input, or for inputs by name."""
        return dict(zip(self.names, _run(self._session, x), strict=True))


def run_file(file: Path, x: Values) -> dict[str, Array]:
    """What the ONNX file of a subgraph computes on ONNX Runtime, integers as the reals they stand for."""
    session = _session(str(file), file)
    return dict(zip([value.name for value in session.get_outputs()], _run(session, x), strict=True))


def _session(source: str | bytes, file: Path) -> Any:
    onnxruntime = load_runtime()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    try:
        return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    # ONNX Runtime's exceptions share no base class of their own.
    except Exception as error:
        raise StretchError(f"ONNX Runtime cannot load {file}: {first_line(error)}") from error


def _run(session: Any, x: Values) -> list[Array]:
    inputs = as_arrays(x, [value.name for value in session.get_inputs()])
    try:
        arrays: list[Array] = session.run(None, inputs)
    except Exception as error:
        raise StretchError(f"ONNX Runtime cannot run the model on this input: {first_line(error)}") from error
    return arrays


#: From the most to the least precise.
_PRECISIONS = tuple(TOLERANCE)


@dataclass(frozen=True)
class Judgement:
    """A session's results that were found right."""

    against: str  # File that they were compared with.
    measure: str  # ``largest`` difference over the largest element, or ``rms`` over rms.
    error: float  # Of the worst tensor, by that measure.
    tolerance: float  # Largest error allowed.
    max_error: float  # Largest difference of the output over its largest element.
    tensors: int  # Tensors that were compared.
    stored: bool  # Whether the whole model was itself compared with what it gave when the bundle was written.
    expected: Values  # The output that was expected.


def judge(session: Session, x: Values) -> Judgement:
    """Run a session once and compare every tensor that crosses subgraphs, and the output."""
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
            error, most = distance(tensors[name], expected[name], precision), allowed(checks, name, precision)
            if not error <= most:
                raise _blame(session, sub, name, tensors, _words(error, precision, most), precision)
            worst, compared = max(worst, error), compared + 1
    output, final = (manifest.named(values) for values in (tensors, expected))
    check_output(session, plain(output), plain(final))
    worst = max(worst, *(distance(output[name], final[name], precision) for name in final))
    measure = "largest" if precision == "fp32" else "rms"
    largest = max_error(output, final)
    tolerance = max(allowed(checks, name, precision) for name in expected)
    return Judgement(manifest.whole, measure, worst, tolerance, largest, compared, stored, plain(final))


def check_output(session: Session, output: Values, expected: Values) -> None:
    """Compare a later output with the one that was judged."""
    manifest = session.bundle.manifest
    precision = max((sub.precision for sub in manifest.subgraphs), key=_PRECISIONS.index)
    names = manifest.results or manifest.outputs
    got, right = (as_arrays(values, names) for values in (output, expected))
    for name, tensor in zip(names, manifest.outputs, strict=True):
        error, most = distance(got[name], right[name], precision), allowed(manifest.checks, tensor, precision)
        if not error <= most:
            what = "the output" if len(right) == 1 else f"the output `{name}`"
            raise StretchError(f"{what} {_words(error, precision, most)} {manifest.whole}", _HINT)


_HINT = "run `stretch verify`, and try other delegates with --map"


def _check_whole(session: Session, reference: Reference, x: Values, results: Mapping[str, Array]) -> bool:
    """Compare the whole model with the bundle's sample."""
    bundle = session.bundle
    whole, outputs = bundle.manifest.whole, bundle.manifest.outputs
    if not all(np.isfinite(results[name]).all() for name in outputs):
        raise StretchError(f"{bundle.file(whole)} gives NaN or infinity for this input", "write the bundle again with `stretch branch`")
    sample = read_sample(bundle.manifest.checks)
    if sample is None:
        return False
    known = random_input(bundle, sample.seed)
    now = results if digest(known) == digest(x) else reference.run(known)
    if problem := sample.problem(known, now[outputs[0]], allowed(bundle.manifest.checks, outputs[0])):
        raise StretchError(f"{bundle.file(whole)} {problem}", "write the bundle again with `stretch branch`")
    return True


def _blame(
    session: Session, sub: SubgraphEntry, tensor: str, tensors: Mapping[str, Array], difference: str, precision: str
) -> StretchError:
    """The error that says whose fault it is: the delegate's, if the subgraph's own file gives something else, or the file's."""
    bundle = session.bundle
    place = session.places[sub.name]
    recomputed = run_file(bundle.file(sub.file), dict(zip(sub.inputs, read_by(sub, tensors), strict=True)))[tensor]
    got = tensors[tensor]
    if recomputed.shape == got.shape and distance(got, recomputed, precision) <= allowed(bundle.manifest.checks, tensor, precision):
        return StretchError(
            f"the output of subgraph `{sub.name}` {difference} {bundle.manifest.whole}: its file {bundle.file(sub.file)} computes something else",
            "write the bundle again with `stretch branch`",
        )
    return StretchError(
        f"the output of subgraph `{sub.name}` on processor `{place.processor}` (delegate `{place.delegate}`) {difference} {bundle.manifest.whole}",
        f"try another delegate with --map {place.processor}=cpu",
    )


def _words(error: float, precision: str, most: float) -> str:
    """How far off something is, as the middle of a sentence that ends with the reference."""
    limit = f"{most:g} is allowed in {precision}"
    if not np.isfinite(error):
        return "holds NaN or infinity, unlike that of"
    if precision == "fp32":
        return f"is off by {error:.2g} of its largest element ({limit}), compared with"
    return f"is off by {error:.2g} of its size ({limit}), compared with"
