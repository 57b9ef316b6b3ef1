"""A bundle's subgraphs run one after the other for their tensors' values, in any precision."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from predictors.joins import meeting_of
from scheduler.bundle.manifest import JoinEntry, Manifest

Array = NDArray[Any]
Run = Callable[[Array], Array]


def runner(model: onnx.ModelProto | str) -> Run:
    """A function that computes a subgraph as its file defines it.

    Integers are computed as the reals they stand for: the same result on every
    machine, where integer kernels differ by what their instructions saturate.

    Args:
        model: The subgraph or its file.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 2
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    source = model if isinstance(model, str) else model.SerializeToString()
    session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name

    def run(x: Array) -> Array:
        return np.asarray(session.run(None, {name: x})[0])

    return run


def replay(manifest: Manifest, runs: Mapping[str, Run], x: Array) -> dict[str, Array]:
    """Value of every tensor that crosses subgraphs, for one input.

    Args:
        manifest: Subgraphs and joins of a bundle, checked already.
        runs: How each subgraph is computed.
        x: The model's input.
    """
    tensors = {manifest.input: x}
    left = [*manifest.subgraphs, *manifest.joins]
    while left:
        waiting = []
        for step in left:
            if isinstance(step, JoinEntry):
                if all(name in tensors for name in step.inputs):
                    tensors[step.output] = meeting_of(step.kind).combine([tensors[name] for name in step.inputs], 1, None)
                    continue
            elif step.input in tensors:
                tensors[step.output] = runs[step.name](tensors[step.input])
                continue
            waiting.append(step)
        left = waiting
    return tensors
