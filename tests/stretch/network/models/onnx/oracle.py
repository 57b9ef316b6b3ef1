"""Small ONNX files, and checks of the module that is read from them against ONNX Runtime."""

from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

from scheduler.formats.onnx.shapes import RULES
from stretch.network.models.onnx import read_module
from tests import onnx_runtime
from tests.scheduler.formats.onnx.shapes.oracle import refused

#: Largest difference from the runtime, as a part of its largest output.
CLOSE = 1e-4


def random(shape, seed=0, scale=1.0):
    """Return normally distributed numbers around zero."""
    return (np.random.default_rng(seed).normal(size=shape) * scale).astype(np.float32)


def save(path, case):
    """Write the node as a file that reads the first input and stores the others; return the path."""
    case.stored = tuple(range(1, len(case.inputs)))
    onnx.save(case.model([onnx.ValueInfoProto(name=f"y{i}") for i in range(case.results)]), str(path))
    return path


def agrees(folder, case, opset=None):
    """Assert that the module of a node agrees with ONNX Runtime and with the shape rules of bundles; return the module."""
    case.opset = opset or case.opset
    path = save(folder / "node.onnx", case)
    results = [want, *_] = case.computed()
    # bundles hold operators of newer opsets, with stated padding and sizes; ONNX Runtime needs a float depth, which the rules refuse
    if case.op in RULES and case.op != "OneHot" and case.opset >= 13 and "auto_pad" not in case.attrs:
        assert refused(case, results) is None
    module = read_module(path)
    with torch.no_grad():
        got = module(torch.from_numpy(case.inputs[0])).numpy()
    # a network returns float32
    assert (got.shape, got.dtype) == (want.shape, np.float32)
    if want.dtype.kind != "f":
        np.testing.assert_array_equal(got, want)
    else:
        assert np.abs(got - want).max() <= CLOSE * max(1.0, float(np.abs(want).max()))
    return module


def net(*nodes, stored=None, shape=(1, 4, 5, 3), outputs=("y",), opset=17, kind=TensorProto.FLOAT):
    """Make a model that reads `x`; `stored` holds its weights by name. Nodes may use ONNX Runtime's own domain."""
    weights = [numpy_helper.from_array(np.asarray(x), name) for name, x in (stored or {}).items()]
    ends = [onnx.ValueInfoProto(name=name) for name in outputs]
    graph = helper.make_graph(list(nodes), "net", [helper.make_tensor_value_info("x", kind, shape)], ends, weights)
    domains = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=8)


def computed(path, x):
    """Return the output of the module that is read from a file."""
    with torch.no_grad():
        return read_module(path)(torch.from_numpy(x)).numpy()


def check_numbers(module, other, x):
    """Assert that a network returns the tensor `other`, or what the network `other` returns."""
    with torch.no_grad():
        got, want = module(x), other if isinstance(other, torch.Tensor) else other(x)
    assert got.shape == want.shape
    assert (got - want).abs().max() <= CLOSE * max(1.0, float(want.abs().max()))


def ran(model, x, **settings):
    """Return the first output of ONNX Runtime for a model or a file."""
    session = onnx_runtime.session(model if isinstance(model, Path) else model.SerializeToString(), log_severity_level=4, **settings)
    return session.run(None, {session.get_inputs()[0].name: x})[0]


def same(path, model, x):
    """Assert that the module of a file computes what ONNX Runtime does; return the names of the functions it calls."""
    onnx.save(model, str(path))
    np.testing.assert_allclose(computed(path, x), ran(model, x), rtol=CLOSE, atol=CLOSE)
    return functions(read_module(path))


def functions(module):
    """Return the names of the functions and modules that a network calls, in order."""
    result = []
    for node in module.graph.nodes:
        if node.op == "call_module":
            result.append(type(module.get_submodule(node.target)).__name__)
        elif node.op == "call_function":
            result.append(node.target.__name__)
    return result
