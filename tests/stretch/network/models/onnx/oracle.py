"""Small ONNX files, and whether the module that is read of them computes what ONNX Runtime does."""

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
    """Numbers around zero, of no special value."""
    return (np.random.default_rng(seed).normal(size=shape) * scale).astype(np.float32)


def save(path, case):
    """Write the node as a file whose first input is the network's, and whose others it stores."""
    case.stored = tuple(range(1, len(case.inputs)))
    onnx.save(case.model([onnx.ValueInfoProto(name=f"y{i}") for i in range(case.results)]), str(path))
    return path


def agrees(folder, case, opset=None):
    """Assert that the module of a node computes what ONNX Runtime does, in the shapes of a bundle's rules; gives the module."""
    case.opset = opset or case.opset
    path = save(folder / "node.onnx", case)
    results = [want, *_] = case.computed()
    # bundles hold operators of newer opsets, with stated padding and sizes; ONNX Runtime needs a float depth with floats, which rules refuse
    if case.op in RULES and case.op != "OneHot" and case.opset >= 13 and "auto_pad" not in case.attrs:
        assert refused(case, results) is None
    module = read_module(path)
    with torch.no_grad():
        got = module(torch.from_numpy(case.inputs[0])).numpy()
    # a network returns reals
    assert (got.shape, got.dtype) == (want.shape, np.float32)
    if want.dtype.kind != "f":
        np.testing.assert_array_equal(got, want)
    else:
        assert np.abs(got - want).max() <= CLOSE * max(1.0, float(np.abs(want).max()))
    return module


def net(*nodes, stored=None, shape=(1, 4, 5, 3), outputs=("y",), opset=17, kind=TensorProto.FLOAT):
    """A model that reads `x`; `stored` are its weights by name. Operators of ONNX Runtime's own domain may be among its nodes."""
    weights = [numpy_helper.from_array(np.asarray(x), name) for name, x in (stored or {}).items()]
    ends = [onnx.ValueInfoProto(name=name) for name in outputs]
    graph = helper.make_graph(list(nodes), "net", [helper.make_tensor_value_info("x", kind, shape)], ends, weights)
    domains = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=8)


def computed(path, x):
    """Output of the module of a file."""
    with torch.no_grad():
        return read_module(path)(torch.from_numpy(x)).numpy()


def check_numbers(module, other, x):
    """Assert that one network computes what another one does, or what an array holds."""
    with torch.no_grad():
        got, want = module(x), other if isinstance(other, torch.Tensor) else other(x)
    assert got.shape == want.shape
    assert (got - want).abs().max() <= CLOSE * max(1.0, float(want.abs().max()))


def ran(model, x, **settings):
    """Output of ONNX Runtime for a model or a file."""
    session = onnx_runtime.session(model if isinstance(model, Path) else model.SerializeToString(), log_severity_level=4, **settings)
    return session.run(None, {session.get_inputs()[0].name: x})[0]


def same(path, model, x):
    """Assert that the module of a file computes what ONNX Runtime does; gives the names of what it calls."""
    onnx.save(model, str(path))
    np.testing.assert_allclose(computed(path, x), ran(model, x), rtol=CLOSE, atol=CLOSE)
    return functions(read_module(path))


def functions(module):
    """Names of the functions and modules that a network calls, in order."""
    result = []
    for node in module.graph.nodes:
        if node.op == "call_module":
            result.append(type(module.get_submodule(node.target)).__name__)
        elif node.op == "call_function":
            result.append(node.target.__name__)
    return result
