"""Operators that belong to no family, in torch and ONNX: calls of torch's own operators, and reshaped tensors."""

from math import prod

import torch
from torch import nn

from predictors.errors import StretchError, need
from predictors.graph import Op
from predictors.operators.opaque import constants
from predictors.shapes import Attrs, Shape, ints
from stretch.operators.formats.onnx import OnnxWriter
from stretch.operators.lowerings import ComputedModule, onnx_node, register
from stretch.operators.opaque.calls import Calls, CheckedCalls, calls_of, type_of


class Opaque(nn.Module):
    """Computes calls of torch.

    Attributes:
        constant_0: The first tensor that the calls read in addition to the inputs, a parameter if it is learned;
            ``constant_1`` the second, and so on.
    """

    def __init__(self, calls: Calls, shape: Shape) -> None:
        super().__init__()
        self._replay = CheckedCalls(calls, shape)
        self._names = [f"constant_{i}" for i in range(len(calls.constants))]
        for name, spec in zip(self._names, calls.constants, strict=True):
            empty = torch.zeros(spec.shape, dtype=type_of(spec.dtype))
            if spec.learned:
                self.register_parameter(name, nn.Parameter(empty))
            else:
                self.register_buffer(name, empty)

    def extra_repr(self) -> str:
        """Return the names of the called operators."""
        return ", ".join(call.operator for call in self._replay.calls.calls)

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        """Compute the calls for any multiple of the batch with which they were recorded."""
        return self._replay.batched(tensors, [getattr(self, name) for name in self._names])


def _make(ins: list[Shape], a: Attrs) -> nn.Module:
    calls = calls_of(a)
    if [spec.shape for spec in calls.reads] != [tuple(shape) for shape in ins]:
        raise StretchError(f"its calls read tensors of {[spec.shape for spec in calls.reads]}, not {ins}")
    need([spec.shape for spec in calls.constants] == list(constants(a).values()), "its calls read constants of other shapes than it states")
    return Opaque(calls, ints(a, "shape"))


def _make_view(ins: list[Shape], a: Attrs) -> nn.Module:
    shape = ints(a, "shape")
    need(len(ins) == 1 and prod(ins[0]) == prod(shape), f"a view of {ins} as {shape} is for predictions only")
    # for any batch
    return ComputedModule("view", a, lambda a, x: x.reshape(-1, *shape[1:]) if shape else x.reshape(()))


def _onnx(w: OnnxWriter, op: Op, ins: list[str]) -> None:
    calls = calls_of(op.attrs)
    # imported here because onnx takes a while to import
    from stretch.operators.opaque.snippets import snippet_of

    snippet = snippet_of(calls, ints(op.attrs, "shape"))
    constant_names = [w.typed_weight(op, f"constant_{i}", spec.dtype) for i, spec in enumerate(calls.constants)]
    names = dict(zip(snippet.inputs, [*ins, *constant_names], strict=True))
    w.graft(op, snippet.nodes, snippet.constants, {**names, snippet.output: op.name})


register("opaque", _make, _onnx)
register("view", _make_view, onnx_node("Reshape", indices=lambda a: {"shape": ints(a, "shape")}))
