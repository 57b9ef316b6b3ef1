"""Element-wise operators in TFLite: activations, sums, products."""

from collections.abc import Callable

import numpy as np

from predictors.graph import Op
from predictors.shapes import number
from stretch.export.tflite.builder import Builder, Value
from stretch.export.tflite.source import Source
from stretch.export.tflite.writer import Quant

Lower = Callable[[Builder, Source, Op, list[Value]], Value]

#: `ActivationFunctionType` of the schema.
RELU, RELU6 = 1, 3

#: Scales that TFLite's int8 operators of a known range insist on.
UNIT = Quant(1 / 256, -128)
SIGNED_UNIT = Quant(1 / 128, 0)

#: e²⁰ is so much larger than 1 that Mish is its input in single precision.
MISH_TOP = 20.0


def plain(code: str, nonnegative: bool = False) -> Lower:
    """One operator of one input."""

    def lower(b: Builder, source: Source, op: Op, ins: list[Value]) -> Value:
        made = b.apply(code, op.name, [ins[0]], quant=b.scales.get(op.name))
        made.nonnegative = nonnegative
        return made

    return lower


def bounded(code: str, quant: Quant, **settings: float) -> Lower:
    """One operator whose int8 result has a scale of its own, whatever was calibrated."""

    def lower(b: Builder, source: Source, op: Op, ins: list[Value]) -> Value:
        made = b.apply(code, op.name, [ins[0]], quant=quant, **settings)
        made.nonnegative = quant == UNIT
        return made

    return lower


def silu(b: Builder, source: Source, op: Op, ins: list[Value]) -> Value:
    """The product x · σ(x)."""
    gate = b.apply("LOGISTIC", f"{op.name}.sigmoid", [ins[0]], quant=UNIT)
    return b.apply("MUL", op.name, [ins[0], gate], quant=b.scales.get(op.name))


def hard_sigmoid(b: Builder, source: Source, op: Op, ins: list[Value]) -> Value:
    """min(max(x + 3, 0), 6) / 6; the clipping is the addition's own activation."""
    x = b.apply("ADD", f"{op.name}.clipped", [ins[0], np.array(3.0)], quant=Quant(6 / 255, -128), fused_activation_function=RELU6)
    return b.apply("MUL", op.name, [x, np.array(1 / 6)], quant=b.scales.get(op.name))


def gelu(b: Builder, source: Source, op: Op, ins: list[Value]) -> Value:
    """The operator of TFLite has both forms."""
    return b.apply("GELU", op.name, [ins[0]], approximate=op.attrs["approximate"] == "tanh")


def elu(b: Builder, source: Source, op: Op, ins: list[Value]) -> Value:
    """An α of 1 is TFLite's own; any other is a factor of the part below zero."""
    alpha = number(op.attrs, "alpha")
    if alpha == 1:
        return b.apply("ELU", op.name, [ins[0]])
    below = b.apply("MINIMUM", f"{op.name}.below", [ins[0], np.array(0.0)])
    curved = b.apply("ELU", f"{op.name}.curved", [below])
    scaled = b.apply("MUL", f"{op.name}.scaled", [curved, np.array(alpha)])
    return b.apply("ADD", op.name, [b.apply("RELU", f"{op.name}.above", [ins[0]]), scaled])


def mish(b: Builder, source: Source, op: Op, ins: list[Value]) -> Value:
    """The product x · tanh(ln(1 + eˣ)) = x · n / (n + 2) with n = eˣ · (eˣ + 2)."""
    low = b.apply("MINIMUM", f"{op.name}.low", [ins[0], np.array(MISH_TOP)])
    e = b.apply("EXP", f"{op.name}.exp", [low])
    n = b.apply("MUL", f"{op.name}.n", [e, b.apply("ADD", f"{op.name}.e2", [e, np.array(2.0)])])
    down = b.apply("ADD", f"{op.name}.n2", [n, np.array(2.0)])
    return b.apply("MUL", op.name, [ins[0], b.apply("DIV", f"{op.name}.gate", [n, down])])


def leaky_relu(b: Builder, source: Source, op: Op, ins: list[Value]) -> Value:
    """A slope below zero."""
    return b.apply("LEAKY_RELU", op.name, [ins[0]], quant=b.scales.get(op.name), alpha=number(op.attrs, "slope"))


def scalar(code: str) -> Lower:
    """With one number."""

    def lower(b: Builder, source: Source, op: Op, ins: list[Value]) -> Value:
        operands = [ins[0], np.array(number(op.attrs, "value"))]
        return b.apply(code, op.name, operands, quant=b.scales.get(op.name))

    return lower


def combine(code: str) -> Lower:
    """Of two inputs or, one after the other, of more; shapes broadcast in NHWC as they do in NCHW."""

    def lower(b: Builder, source: Source, op: Op, ins: list[Value]) -> Value:
        made, *others = ins
        for i, other in enumerate(others):
            name = op.name if i == len(others) - 1 else f"{op.name}.part{i}"
            shape = tuple(max(sizes) for sizes in zip(made.shape, other.shape, strict=True))
            made = b.apply(code, name, [made, other], shape, b.scales.get(op.name))
        made.nonnegative = all(value.nonnegative for value in ins)
        return made

    return lower


LOWER: dict[str, Lower] = {
    "relu": plain("RELU", nonnegative=True),
    "relu6": plain("RELU6", nonnegative=True),
    "hard_swish": plain("HARD_SWISH"),
    "hard_sigmoid": hard_sigmoid,
    "silu": silu,
    "sigmoid": bounded("LOGISTIC", UNIT),
    "tanh": bounded("TANH", SIGNED_UNIT),
    "gelu": gelu,
    "elu": elu,
    "leaky_relu": leaky_relu,
    "mish": mish,
    "add_scalar": scalar("ADD"),
    "mul_scalar": scalar("MUL"),
    "softmax": bounded("SOFTMAX", UNIT, beta=1.0),
    "log_softmax": plain("LOG_SOFTMAX"),
    "add": combine("ADD"),
    "mul": combine("MUL"),
}
