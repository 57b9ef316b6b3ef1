"""Single operators as files, their shape rules, and ONNX Runtime's results as oracle."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from hypothesis.extra import numpy as arrays
from onnx import helper, numpy_helper

from predictors.errors import StretchError
from scheduler.formats.onnx import OnnxFile
from scheduler.formats.onnx.shapes import RULES
from scheduler.formats.onnx.shapes.node import KnownTensor, ShapeNode

FILE = Path("case.onnx")

shapes = arrays.array_shapes(min_dims=1, max_dims=4, max_side=5)


def reals(shape):
    """An array of 0.5, a valid argument of every real function."""
    return np.full(shape, 0.5, np.float32)


def whole(*numbers):
    """A one-dimensional array of integers."""
    return np.array(numbers, np.int64)


@dataclass
class Case:
    """One node with its inputs and attributes."""

    op: str
    inputs: list
    attrs: dict = field(default_factory=dict)
    stored: tuple = ()
    results: int = 1
    opset: int = 20

    def model(self, outputs):
        """A model of the node with these outputs."""
        names = ["" if x is None else f"x{i}" for i, x in enumerate(self.inputs)]
        arguments = [(name, x) for name, x in zip(names, self.inputs, strict=True) if name]
        weights = [numpy_helper.from_array(x, name) for name, x in arguments if int(name[1:]) in self.stored]
        fed = [(name, x) for name, x in arguments if int(name[1:]) not in self.stored]
        inputs = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for name, x in fed]
        node = helper.make_node(self.op, names, [f"y{i}" for i in range(self.results)], **self.attrs)
        graph = helper.make_graph([node], "case", inputs, outputs, weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=10)

    def computed(self):
        """ONNX Runtime's outputs, or None if it refuses the model."""
        outputs = [onnx.ValueInfoProto(name=f"y{i}") for i in range(self.results)]
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 4
        feed = {f"x{i}": x for i, x in enumerate(self.inputs) if x is not None and i not in self.stored}
        try:
            session = onnxruntime.InferenceSession(self.model(outputs).SerializeToString(), options, ["CPUExecutionProvider"])
            return session.run(None, feed)
        # ONNX Runtime has a class for each kind of refusal and also raises plain errors of Python.
        except Exception:
            return None


def agrees(case):
    """Assert that the rule gives the shapes and element types of ONNX Runtime's results."""
    computed = case.computed()
    assert computed is not None, f"{case} is no case: ONNX Runtime refuses it"
    assert refused(case, computed) is None


def refused(case, built):
    """Reason why a file that states outputs with these shapes and types is refused, or None."""
    outputs = [helper.make_tensor_value_info(f"y{i}", helper.np_dtype_to_tensor_dtype(y.dtype), y.shape) for i, y in enumerate(built)]
    try:
        _ = OnnxFile(FILE, case.model(outputs)).cost
    except StretchError as error:
        return error.message
    return None


def node(shapes, attrs=None, constants=None, results=1):
    """A rule's view of a node with float inputs of these shapes, and integer constants by position."""
    stored = {i: KnownTensor((len(numbers),), 7, tuple(numbers)) for i, numbers in (constants or {}).items()}
    inputs = [stored.get(i, None if shape is None else KnownTensor(shape)) for i, shape in enumerate(shapes)]
    return ShapeNode(tuple(inputs), attrs or {}, results)


def rule(op, *args, **more):
    """Result of an operator's rule for a node."""
    return RULES[op](node(*args, **more))
