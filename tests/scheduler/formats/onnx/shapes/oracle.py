"""Single operators as files, their rules, and what ONNX Runtime makes of them."""

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
    """Numbers that no function of reals refuses."""
    return np.full(shape, 0.5, np.float32)


def whole(*numbers):
    """A list of whole numbers."""
    return np.array(numbers, np.int64)


@dataclass
class Case:
    """One node."""

    op: str
    inputs: list
    attrs: dict = field(default_factory=dict)
    stored: tuple = ()
    results: int = 1
    opset: int = 20

    def model(self, outputs):
        """A file of the node, which states these outputs."""
        names = ["" if x is None else f"x{i}" for i, x in enumerate(self.inputs)]
        arguments = [(name, x) for name, x in zip(names, self.inputs, strict=True) if name]
        weights = [numpy_helper.from_array(x, name) for name, x in arguments if int(name[1:]) in self.stored]
        fed = [(name, x) for name, x in arguments if int(name[1:]) not in self.stored]
        inputs = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for name, x in fed]
        node = helper.make_node(self.op, names, [f"y{i}" for i in range(self.results)], **self.attrs)
        graph = helper.make_graph([node], "case", inputs, outputs, weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=10)

    def computed(self):
        """Output of ONNX Runtime for it; None if it refuses."""
        outputs = [onnx.ValueInfoProto(name=f"y{i}") for i in range(self.results)]
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 4
        feed = {f"x{i}": x for i, x in enumerate(self.inputs) if x is not None and i not in self.stored}
        try:
            session = onnxruntime.InferenceSession(self.model(outputs).SerializeToString(), options, ["CPUExecutionProvider"])
            return session.run(None, feed)
        # Each kind of refusal is a class of its own, and some are plain errors of Python.
        except Exception:
            return None


def agrees(case):
    """Assert that shapes and element types of the results are those that ONNX Runtime makes."""
    computed = case.computed()
    assert computed is not None, f"{case} is no case: ONNX Runtime refuses it"
    assert refused(case, computed) is None


def refused(case, built):
    """Why a file is refused that states results like these; None if it is not."""
    outputs = [helper.make_tensor_value_info(f"y{i}", helper.np_dtype_to_tensor_dtype(y.dtype), y.shape) for i, y in enumerate(built)]
    try:
        _ = OnnxFile(FILE, case.model(outputs)).cost
    except StretchError as error:
        return error.message
    return None


def node(shapes, attrs=None, constants=None, results=1):
    """A rule's view of a node that reads reals of these shapes, and constants that are whole numbers."""
    stored = {i: KnownTensor((len(numbers),), 7, tuple(numbers)) for i, numbers in (constants or {}).items()}
    inputs = [stored.get(i, None if shape is None else KnownTensor(shape)) for i, shape in enumerate(shapes)]
    return ShapeNode(tuple(inputs), attrs or {}, results)


def rule(op, *args, **more):
    """Answer of an operator's rule to a node."""
    return RULES[op](node(*args, **more))
