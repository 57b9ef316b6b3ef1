"""Single ONNX nodes as files, and whether the module that is read of them computes what ONNX Runtime does."""

import numpy as np
import onnx
import torch

from stretch.models.onnx import read_module

#: Largest difference from the runtime, as a part of its largest output.
CLOSE = 1e-4


def random(shape, seed=0, scale=1.0):
    """Numbers around zero, of no special value."""
    return (np.random.default_rng(seed).normal(size=shape) * scale).astype(np.float32)


def save(path, case):
    """Write the node as a file whose first input is the network's, and whose others it stores."""
    case.stored = tuple(range(1, len(case.inputs)))
    onnx.save(case.model([onnx.ValueInfoProto(name=f"y{i}") for i in range(case.results)]), str(path))
    return path


def agrees(folder, case, opset=None):
    """Assert that the module of a node computes what ONNX Runtime does; gives the module."""
    case.opset = opset or case.opset
    path = save(folder / "node.onnx", case)
    [want, *_] = case.computed()
    module = read_module(path)
    with torch.no_grad():
        got = module(torch.from_numpy(case.inputs[0])).numpy()
    assert got.shape == want.shape
    assert np.abs(got - want).max() <= CLOSE * max(1.0, float(np.abs(want).max()))
    return module
