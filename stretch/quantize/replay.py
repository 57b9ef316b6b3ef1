"""A bundle's subgraphs run one after the other for their tensors' values, in any precision."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from predictors.joins import meeting_of
from scheduler.bundle.manifest import JoinEntry, Manifest
from scheduler.bundle.rows import read_by
from scheduler.runtime.plan import PlannedJoin, make_plan

Array = NDArray[Any]
#: What a subgraph reads for one image: an array, or one for each input.
Sample = Array | Sequence[Array]
#: Computes a subgraph from the tensors that it reads: what it writes, as a tuple where that is several tensors.
Run = Callable[..., Any]


def fed(model: onnx.ModelProto, sample: Sample) -> dict[str, Array]:
    """A sample by the names of a model's inputs."""
    names = [value.name for value in model.graph.input]
    return dict(zip(names, (sample,) if isinstance(sample, np.ndarray) else sample, strict=True))


def several(written: Any) -> tuple[Array, ...]:
    """What a `Run` gives as a tuple in any case."""
    return written if isinstance(written, tuple) else (written,)


def runner(model: onnx.ModelProto | str) -> Run:
    """A function that computes a subgraph as its file defines it.

    Integers are computed as the reals they stand for: the same result on every
    machine, where integer kernels differ by what their instructions saturate.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 2
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    source = model if isinstance(model, str) else model.SerializeToString()
    session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]

    def run(*reads: Array) -> Any:
        written = tuple(np.asarray(output) for output in session.run(None, dict(zip(names, reads, strict=True))))
        return written if len(written) > 1 else written[0]

    return run


def _add_whole(manifest: Manifest, join: JoinEntry, whole: Array, tensors: dict[str, Array]) -> None:
    """A segment's result and the parts that it is made of, bands of rows or channels."""
    axis = meeting_of(join.kind).axis("NCHW", whole.ndim)
    sizes = {tensor.name: tensor.shape[axis] for tensor in manifest.tensors if tensor.name in join.inputs}
    ends = np.cumsum([sizes[name] for name in join.inputs])
    tensors[join.output] = whole
    tensors.update(zip(join.inputs, np.split(whole, ends[:-1], axis), strict=True))


def replay(manifest: Manifest, runs: Mapping[str, Run], x: Array, wholes: Mapping[str, Run] | None = None) -> dict[str, Array]:
    """Value of every tensor that crosses subgraphs, for one input.

    Args:
        wholes: How segments are computed as one, by name, whose branches are bands of their rows or some of their channels: from all of what these read.
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
        if isinstance(step, PlannedJoin):
            values = [tensors[read] for read in step.inputs]
            meeting = meeting_of(step.kind)
            tensors[step.output] = meeting.combine(values, meeting.axis("NCHW", values[0].ndim), None)
        else:
            tensors.update(zip(step.outputs, several(runs[name](*read_by(step, tensors))), strict=True))
    return tensors
