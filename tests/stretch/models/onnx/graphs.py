"""Small ONNX files of several nodes."""

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

from stretch.models.onnx import read_module


def net(*nodes, stored=None, shape=(1, 4, 5, 3), outputs=("y",), opset=17, kind=TensorProto.FLOAT):
    """A model that reads `x`; `stored` are its weights by name. Operators of ONNX Runtime's own domain may be among its nodes."""
    weights = [numpy_helper.from_array(np.asarray(x), name) for name, x in (stored or {}).items()]
    ends = [onnx.ValueInfoProto(name=name) for name in outputs]
    graph = helper.make_graph(list(nodes), "net", [helper.make_tensor_value_info("x", kind, shape)], ends, weights)
    domains = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=8)


def computed(path, x):
    """What the module of a file computes."""
    with torch.no_grad():
        return read_module(path)(torch.from_numpy(x)).numpy()


def functions(module):
    """Names of the functions and modules that a network calls, in order."""
    result = []
    for node in module.graph.nodes:
        if node.op == "call_module":
            result.append(type(module.get_submodule(node.target)).__name__)
        elif node.op == "call_function":
            result.append(node.target.__name__)
    return result
