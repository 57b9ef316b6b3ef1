"""ONNX Runtime as an oracle that runs whole models. It uses one thread because several tests run in parallel."""

from pathlib import Path

import numpy as np
import onnxruntime


def session(model: Path | bytes, **settings: object) -> onnxruntime.InferenceSession:
    """A session on one thread.

    Args:
        model: A file or its content.
        settings: Attributes of `onnxruntime.SessionOptions`.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    for name, value in settings.items():
        setattr(options, name, value)
    return onnxruntime.InferenceSession(model if isinstance(model, bytes) else str(model), options, providers=["CPUExecutionProvider"])


def output(model: Path | bytes, x: np.ndarray) -> np.ndarray:
    running = session(model)
    return running.run(None, {running.get_inputs()[0].name: x})[0]
