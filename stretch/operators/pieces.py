"""How pieces of a tensor along one of its dimensions are cut out and put together again, in ONNX and TFLite."""

from collections.abc import Callable

from predictors.graph import Op
from predictors.shapes import integer
from stretch.formats.onnx import OnnxWriter
from stretch.formats.tflite.builder import SubgraphBuilder, Value, to_nhwc
from stretch.formats.tflite.source import SubgraphSource


def slice_onnx(axis: int) -> Callable[[OnnxWriter, Op, list[str]], None]:
    """Writes an operator with `start` and `stop` along an axis of an NCHW tensor."""

    def write(w: OnnxWriter, op: Op, ins: list[str]) -> None:
        bounds = (("start", integer(op.attrs, "start")), ("stop", integer(op.attrs, "stop")), ("axis", axis))
        w.node("Slice", op, [ins[0], *[w.indices(op, key, [value]) for key, value in bounds]])

    return write


def slice_tflite(axis: int) -> Callable[[SubgraphBuilder, SubgraphSource, Op, list[Value]], Value]:
    """Writes an operator with `start` along an axis of an NHWC tensor; its output's shape says where it ends."""

    def write(b: SubgraphBuilder, source: SubgraphSource, op: Op, ins: list[Value]) -> Value:
        shape = to_nhwc(op.shape)
        begin = [0] * len(shape)
        begin[axis] = integer(op.attrs, "start")
        return b.moved("SLICE", op.name, ins[0], shape, [b.indices(f"{op.name}.begin", begin), b.indices(f"{op.name}.size", shape)])

    return write


def concat_tflite(axis: int) -> Callable[[SubgraphBuilder, SubgraphSource, Op, list[Value]], Value]:
    """Writes an operator that puts tensors together along an axis, NHWC; int8 inputs are re-quantised to the scale of the result."""

    def write(b: SubgraphBuilder, source: SubgraphSource, op: Op, ins: list[Value]) -> Value:
        shape, quant = to_nhwc(op.shape), b.scale(op)
        indices = [b.integer(value, quant) if b.rounded else b.real(value) for value in ins]
        result = b.write("CONCATENATION", op.name, indices, shape, quant, axis=axis % len(shape))
        result.nonnegative = all(value.nonnegative for value in ins)
        return result

    return write
