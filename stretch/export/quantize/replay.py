"""Run a bundle's subgraphs on ONNX Runtime, and measure the loss of their outputs."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from predictors.errors import StretchError, first_line
from predictors.joins import meeting_of
from scheduler.bundle.manifest import JoinEntry, Manifest
from scheduler.bundle.rows import rows_read_by
from scheduler.runtime.plan import make_plan

Array = NDArray[Any]

#: Signal-to-noise ratio of equal results, dB, in place of infinity.
EQUAL_DB = 200.0


@dataclass(frozen=True)
class Loss:
    """Difference of a result from its reference, over all pairs."""

    cosine: float  # Cosine of the angle between result and reference, which ignores a wrong scale.
    snr_db: float  # Power of the reference over the power of the difference, dB.

    def exceeds(self, min_cosine: float) -> bool:
        """Return whether the loss exceeds the limit of `min_cosine`, by the cosine or by the signal-to-noise ratio."""
        return not (self.cosine >= min_cosine and self.snr_db >= least_snr_db(min_cosine))

    def to_json(self) -> dict[str, float]:
        """Return both numbers, rounded to their meaningful digits."""
        return {"cosine": round(self.cosine, 6), "snr_db": round(self.snr_db, 2)}


def least_snr_db(min_cosine: float) -> float:
    """Return the signal-to-noise ratio, dB, that corresponds to a cosine.

    Two tensors of equal length r at a cosine c are r·√(2·(1 − c)) apart.
    """
    distance = 2 * (1 - min_cosine)
    return EQUAL_DB if distance <= 0 else min(EQUAL_DB, -10 * math.log10(distance))


def loss(pairs: Iterable[tuple[Array, Array]]) -> Loss:
    """Return the loss of results against references, each concatenated to one vector."""
    product = reference = result = difference = 0.0
    for expected, actual in pairs:
        a, b = expected.ravel().astype(np.float64), actual.ravel().astype(np.float64)
        with np.errstate(all="ignore"):  # infinity and NaN: reported below
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
    """Return the share of pairs of class scores, batch × classes, with the same best class."""
    same = [int(np.argmax(expected)) == int(np.argmax(actual)) for expected, actual in pairs]
    return sum(same) / len(same)


#: Input of a subgraph for one image: an array, or one array per input.
Sample = Array | Sequence[Array]
#: Computes a subgraph's outputs from its inputs: an array, or a tuple of several.
Run = Callable[..., Any]


def feed_dict(model: onnx.ModelProto, sample: Sample) -> dict[str, Array]:
    """Return a sample by the names of a model's inputs."""
    names = [value.name for value in model.graph.input]
    return dict(zip(names, (sample,) if isinstance(sample, np.ndarray) else sample, strict=True))


def as_tuple(written: Any) -> tuple[Array, ...]:
    """Return the result of a `Run` as a tuple."""
    return written if isinstance(written, tuple) else (written,)


def with_outputs(model: onnx.ModelProto, names: Iterable[str]) -> onnx.ModelProto:
    """Return a copy of a model with these tensors as additional outputs."""
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    present = {value.name for value in shown.graph.output}
    shown.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in present)
    return shown


def session_of(model: onnx.ModelProto | str, *, optimised: bool = True, weights: Path | None = None) -> Any:
    """Open a subgraph in ONNX Runtime, with integers computed as the real numbers that they represent.

    So the result is equal on every machine, whereas integer kernels differ in the saturation of their instructions.

    Args:
        model: The model, or the path of its file.
        optimised: Whether operators may be fused; some versions then lose outputs that other operators also read.
        weights: Folder of external weights.

    Raises:
        StretchError: If ONNX Runtime cannot load it.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 2
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    if weights is not None:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(weights))
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    name, source = (model, model) if isinstance(model, str) else (f"`{model.graph.name}`", model.SerializeToString())
    try:
        return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    # ONNX Runtime's exceptions share no base class of their own.
    except Exception as error:
        raise StretchError(f"ONNX Runtime cannot load {name}: {first_line(error)}", "try another version of onnxruntime") from error


def runner(model: onnx.ModelProto | str) -> Run:
    """Return a function that runs a subgraph, with integers computed as in `session_of`."""
    session = session_of(model)
    names = [value.name for value in session.get_inputs()]

    def run(*reads: Array) -> Any:
        written = tuple(np.asarray(output) for output in session.run(None, dict(zip(names, reads, strict=True))))
        return written if len(written) > 1 else written[0]

    return run


def _add_whole(manifest: Manifest, join: JoinEntry, joined: Array, tensors: dict[str, Array]) -> None:
    """Add a segment's result and its parts, bands of rows or ranges of channels, to `tensors`."""
    axis = meeting_of(join.kind).axis("NCHW", joined.ndim)
    sizes = {tensor.name: tensor.shape[axis] for tensor in manifest.tensors if tensor.name in join.inputs}
    ends = np.cumsum([sizes[name] for name in join.inputs])
    tensors[join.output] = joined
    tensors.update(zip(join.inputs, np.split(joined, ends[:-1], axis), strict=True))


def replay(manifest: Manifest, runs: Mapping[str, Run], x: Array, wholes: Mapping[str, Run] | None = None) -> dict[str, Array]:
    """Return the value of every tensor between subgraphs, for one input.

    Args:
        wholes: Functions that compute whole segments from their input, by name, for segments in bands of rows or ranges of channels.
    """
    tensors = {manifest.input: x}
    plan = make_plan(manifest)
    bands = {join.segment: join for join in manifest.joins if join.segment in (wholes or {})}
    for name in plan.order:
        step = plan.step(name)
        if step.segment in bands:
            assert wholes is not None
            if bands[step.segment].output not in tensors:
                _add_whole(manifest, bands[step.segment], wholes[step.segment](tensors[step.inputs[0]]), tensors)
            continue
        if isinstance(step, JoinEntry):
            values = [tensors[read] for read in step.inputs]
            meeting = meeting_of(step.kind)
            tensors[step.output] = meeting.combine(values, meeting.axis("NCHW", values[0].ndim), None)
        else:
            tensors.update(zip(step.outputs, as_tuple(runs[name](*rows_read_by(step, tensors))), strict=True))
    return tensors
