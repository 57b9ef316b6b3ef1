"""ONNX's definition of every operator, in numpy: slow, and the reference for all other delegates."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from predictors.errors import StretchError
from scheduler.delegates.base import Array, Compiled, Delegate, Invocation, delegates
from scheduler.formats.onnx import open_onnx

if TYPE_CHECKING:
    from onnx.reference import ReferenceEvaluator

#: Opset from which on operators are read; the library reads older ones by newer definitions.
MIN_OPSET = 18


@dataclass(frozen=True)
class Window:
    """A pooling window and its steps; used because the library's poolings mix up unequal pads and last windows."""

    kernel: Sequence[int]
    strides: Sequence[int]
    pads: Sequence[int]  # Top, left, bottom, right.
    dilations: Sequence[int]
    ceil: bool  # Whether a last window may reach beyond the padding; a window that starts there is dropped.

    def of(self, x: Array, fill: float, *, padded: bool = False) -> Array:
        """Return the windows of `x` as N×C×oH×oW×kH×kW.

        Args:
            x: N×C×H×W.
            fill: Value of elements outside the tensor.
            padded: Whether `x` already includes its pads.
        """
        widths, counts, reach = [(0, 0), (0, 0)], [], [d * (k - 1) + 1 for d, k in zip(self.dilations, self.kernel, strict=True)]
        for axis in (0, 1):
            before, after, stride = self.pads[axis], self.pads[axis + 2], self.strides[axis]
            size = x.shape[axis + 2] + (0 if padded else before + after)
            count = (math.ceil if self.ceil else math.floor)((size - reach[axis]) / stride) + 1
            count -= self.ceil and (count - 1) * stride >= size - after
            beyond = max(0, (count - 1) * stride + reach[axis] - size)
            widths.append((0, beyond) if padded else (before, after + beyond))
            counts.append(count)
        windows = sliding_window_view(np.pad(x, widths, constant_values=fill), reach, axis=(2, 3))
        windows = windows[:, :, :: self.strides[0], :: self.strides[1], :: self.dilations[0], :: self.dilations[1]]
        return np.asarray(windows[:, :, : counts[0], : counts[1]])

    def largest(self, x: Array) -> Array:
        """Return the largest element of each window; padding is never the largest."""
        return np.asarray(self.of(x, -np.inf).max(axis=(4, 5)))

    def mean(self, x: Array, *, counts_pads: bool) -> Array:
        """Return the mean of each window; elements beyond the padding never count."""
        top, left, bottom, right = self.pads if counts_pads else (0, 0, 0, 0)
        mask = np.ones((1, 1, x.shape[2] + top + bottom, x.shape[3] + left + right))
        total, count = self.of(x.astype(np.float64), 0.0), self.of(mask, 0.0, padded=counts_pads)
        return np.asarray((total.sum(axis=(4, 5)) / count.sum(axis=(4, 5))).astype(x.dtype))


def padded(x: Array, pads: Sequence[int], value: Array | None, axes: Sequence[int], mode: str) -> Array:
    """Return `x` with constant borders; a negative width crops, which the library does not support."""
    if mode != "constant":
        raise ValueError(f"mode `{mode}` is not defined here")
    widths = [(0, 0)] * x.ndim
    for i, axis in enumerate(axes):
        widths[axis] = pads[i], pads[i + len(axes)]
    cropped = x[tuple(slice(max(0, -before), size - max(0, -after)) for size, (before, after) in zip(x.shape, widths, strict=True))]
    return np.pad(cropped, [(max(0, a), max(0, b)) for a, b in widths], constant_values=0 if value is None else value.item())


class ReferenceInvocation(Invocation):
    """A graph tied to its buffers."""

    def __init__(self, compiled: "ReferenceCompiled", inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        self._compiled, self._inputs, self._outputs = compiled, inputs, outputs

    def run(self) -> None:
        """Evaluate the graph."""
        values = self._compiled.evaluate(self._inputs)
        for name, buffer in zip(self._compiled.outputs, self._outputs, strict=True):
            if values[name].shape != buffer.shape:
                raise StretchError(f"output `{name}` came out as {list(values[name].shape)}, the model says {list(buffer.shape)}")
            np.copyto(buffer, values[name])


class ReferenceCompiled(Compiled):
    """An ONNX graph in the evaluator of the `onnx` package."""

    def __init__(self, evaluator: "ReferenceEvaluator", shapes: tuple[dict[str, tuple[int, ...]], ...]) -> None:
        super().__init__(shapes[0], shapes[1])
        self._evaluator = evaluator

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> ReferenceInvocation:
        """Tie the graph to `inputs` and `outputs`."""
        self.check(inputs, outputs)
        return ReferenceInvocation(self, inputs, outputs)

    def evaluate(self, inputs: Sequence[Array]) -> dict[str, Array]:
        """Return every tensor of the graph, by name."""
        try:
            with np.errstate(all="ignore"):  # the library's sigmoid overflows on its way to 0
                values: Any = self._evaluator.run(None, dict(zip(self.inputs, inputs, strict=True)), intermediate=True)
        except Exception as error:  # any error of an operator in the library
            raise StretchError(f"the graph cannot be evaluated: {' '.join(str(error).split())[:300]}") from error
        return dict(values)


@delegates.register("reference")
class ReferenceDelegate(Delegate):
    """The evaluator of the `onnx` package."""

    summary = "numpy, ONNX's definition of every operator"

    def compile(self, model: Path) -> ReferenceCompiled:
        """Read `model`; refuse operators that ONNX does not define."""
        from onnx.reference import ReferenceEvaluator
        from onnx.reference.op_run import OpRun

        def window(attrs: dict[str, Any]) -> Window:
            steps = [attrs.get(key) or (1, 1) for key in ("strides", "dilations")]
            return Window(attrs["kernel_shape"], steps[0], attrs.get("pads") or (0, 0, 0, 0), steps[1], bool(attrs.get("ceil_mode")))

        class MaxPool(OpRun):
            def _run(self, x: Array, **attrs: Any) -> tuple[Array]:
                return (window(attrs).largest(x),)

        class AveragePool(OpRun):
            def _run(self, x: Array, **attrs: Any) -> tuple[Array]:
                return (window(attrs).mean(x, counts_pads=bool(attrs.get("count_include_pad"))),)

        class Pad(OpRun):
            def _run(
                self, x: Array, pads: Array, value: Array | None = None, axes: Array | None = None, mode: str = "constant"
            ) -> tuple[Array]:
                return (padded(x, pads.tolist(), value, [int(a) for a in axes] if axes is not None else range(x.ndim), mode),)

        opened = open_onnx(model)
        for opset in opened.proto.opset_import:
            if opset.domain in ("", "ai.onnx") and opset.version < MIN_OPSET:
                raise StretchError(f"{model} uses opset {opset.version}, the reference delegate reads {MIN_OPSET} and later")
        for node in opened.proto.graph.node:
            if node.domain not in ("", "ai.onnx"):
                raise StretchError(f"node `{node.name}` of {model} is a {node.op_type}, which the reference delegate does not define")
        try:
            return ReferenceCompiled(ReferenceEvaluator(str(model), new_ops=[MaxPool, AveragePool, Pad]), opened.ends)
        except Exception as error:  # an operator without a definition, or a version of it
            raise StretchError(f"{model} cannot be evaluated by the reference delegate: {error}") from error
