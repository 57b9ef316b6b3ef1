"""Kinds of operators: output shape, multiply-accumulates and weights of each.

A cost twin beside every operator means cost is known without running anything.
Layout is NCHW throughout; padding is (top, left, bottom, right).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, prod

from predictors.errors import UnknownNameError

Shape = tuple[int, ...]
Attr = bool | int | float | str | tuple[int, ...]
Attrs = Mapping[str, Attr]


@dataclass(frozen=True)
class Kind:
    """What is known of one kind of operator.

    Args:
        shape: Output shape from input shapes and attributes.
        macs: Multiply-accumulates from input shapes, attributes, output shape.
        weights: Shape of each weight, by name.
        min_inputs: Fewest inputs.
        weightless: It neither computes with weights nor mixes channels, so a
            meeting point may be pushed past it.
        elementwise: Output element i depends only on input elements i.
        identity: At inference it returns its input.
    """

    shape: Callable[[Sequence[Shape], Attrs], Shape]
    macs: Callable[[Sequence[Shape], Attrs, Shape], int]
    weights: Callable[[Sequence[Shape], Attrs], dict[str, Shape]]
    min_inputs: int = 1
    weightless: bool = True
    elementwise: bool = False
    identity: bool = False


def ints(attrs: Attrs, key: str) -> tuple[int, ...]:
    """The tuple of ints `attrs[key]`; raises TypeError if it is something else."""
    value = attrs[key]
    if not isinstance(value, tuple):
        raise TypeError(f"`{key}` is {value!r}, not a list of numbers")
    return value


def integer(attrs: Attrs, key: str, default: int | None = None) -> int:
    """The int `attrs[key]`; raises TypeError if it is something else."""
    value = attrs.get(key, default) if default is not None else attrs[key]
    if not isinstance(value, int):
        raise TypeError(f"`{key}` is {value!r}, not a whole number")
    return value


def number(attrs: Attrs, key: str) -> float:
    """The float `attrs[key]`; raises TypeError if it is something else."""
    value = attrs[key]
    if not isinstance(value, int | float):
        raise TypeError(f"`{key}` is {value!r}, not a number")
    return float(value)


def _no_macs(ins: Sequence[Shape], attrs: Attrs, out: Shape) -> int:
    return 0


def _no_weights(ins: Sequence[Shape], attrs: Attrs) -> dict[str, Shape]:
    return {}


def _same(ins: Sequence[Shape], attrs: Attrs) -> Shape:
    return ins[0]


def _rank4(shape: Shape) -> Shape:
    if len(shape) != 4:
        raise ValueError(f"it needs an N×C×H×W tensor, it reads {shape}")
    return shape


def _window(ins: Sequence[Shape], attrs: Attrs, channels: int) -> Shape:
    n, _, h, w = _rank4(ins[0])
    kernel, stride = ints(attrs, "kernel"), ints(attrs, "stride")
    top, left, bottom, right = ints(attrs, "padding")
    dilation = ints(attrs, "dilation") if "dilation" in attrs else (1, 1)
    rounding = ceil if attrs.get("ceil_mode") else floor
    out = []
    for size, k, s, d, before, after in (
        (h, kernel[0], stride[0], dilation[0], top, bottom),
        (w, kernel[1], stride[1], dilation[1], left, right),
    ):
        o = rounding((size + before + after - d * (k - 1) - 1) / s) + 1
        # A window that starts in the far padding is dropped, as torch and ONNX do.
        if attrs.get("ceil_mode") and (o - 1) * s >= size + before:
            o -= 1
        out.append(o)
    return (n, channels, out[0], out[1])


def _conv_shape(ins: Sequence[Shape], attrs: Attrs) -> Shape:
    channels, groups, out = _rank4(ins[0])[1], integer(attrs, "groups"), integer(attrs, "out_channels")
    if channels % groups or out % groups:
        raise ValueError(f"{groups} groups divide neither {channels} inputs nor {out} outputs")
    return _window(ins, attrs, out)


def _conv_weights(ins: Sequence[Shape], attrs: Attrs) -> dict[str, Shape]:
    out, kernel = integer(attrs, "out_channels"), ints(attrs, "kernel")
    weights: dict[str, Shape] = {"weight": (out, ins[0][1] // integer(attrs, "groups"), *kernel)}
    if attrs["bias"]:
        weights["bias"] = (out,)
    return weights


def _conv_macs(ins: Sequence[Shape], attrs: Attrs, out: Shape) -> int:
    return prod(out) * (ins[0][1] // integer(attrs, "groups")) * prod(ints(attrs, "kernel"))


def _linear_weights(ins: Sequence[Shape], attrs: Attrs) -> dict[str, Shape]:
    out = integer(attrs, "out_features")
    weights: dict[str, Shape] = {"weight": (out, ins[0][-1])}
    if attrs["bias"]:
        weights["bias"] = (out,)
    return weights


def _linear_macs(ins: Sequence[Shape], attrs: Attrs, out: Shape) -> int:
    return prod(out) * ins[0][-1]


def _norm_weights(ins: Sequence[Shape], attrs: Attrs) -> dict[str, Shape]:
    c = (ins[0][1],)
    weights: dict[str, Shape] = {"weight": c, "bias": c} if attrs["affine"] else {}
    return weights | {"running_mean": c, "running_var": c}


def _channel_weights(ins: Sequence[Shape], attrs: Attrs) -> dict[str, Shape]:
    return {"weight": (ins[0][1],)}


def _channel_bias(ins: Sequence[Shape], attrs: Attrs) -> dict[str, Shape]:
    return {"bias": (ins[0][1],)}


def _layer_norm_weights(ins: Sequence[Shape], attrs: Attrs) -> dict[str, Shape]:
    c = (ins[0][1],)
    return {"weight": c, "bias": c} if attrs["affine"] else {}


def _shuffle_shape(ins: Sequence[Shape], attrs: Attrs) -> Shape:
    groups = integer(attrs, "groups")
    if ins[0][1] % groups:
        raise ValueError(f"{groups} groups do not divide {ins[0][1]} channels")
    return ins[0]


def _upsample_shape(ins: Sequence[Shape], attrs: Attrs) -> Shape:
    n, c, h, w = _rank4(ins[0])
    down, across = ints(attrs, "scale")
    return (n, c, h * down, w * across)


def _broadcast(ins: Sequence[Shape], attrs: Attrs) -> Shape:
    if len({len(s) for s in ins}) != 1:
        raise ValueError(f"its inputs {ins[0]} and {ins[1]} have different ranks")
    out = []
    for sizes in zip(*ins, strict=True):
        wide = max(sizes)
        if any(s not in (1, wide) for s in sizes):
            raise ValueError(f"its inputs {' and '.join(map(str, ins))} differ")
        out.append(wide)
    return tuple(out)


def _concat_shape(ins: Sequence[Shape], attrs: Attrs) -> Shape:
    first = ins[0]
    for other in ins[1:]:
        if len(other) != len(first) or other[:1] + other[2:] != first[:1] + first[2:]:
            raise ValueError(f"its inputs {first} and {other} differ in more than channels")
    return (first[0], sum(s[1] for s in ins), *first[2:])


def _flatten_shape(ins: Sequence[Shape], attrs: Attrs) -> Shape:
    return (ins[0][0], prod(ins[0][1:]))


def _unflatten_shape(ins: Sequence[Shape], attrs: Attrs) -> Shape:
    if len(ins[0]) != 2:
        raise ValueError(f"it needs an N×C tensor, it reads {ins[0]}")
    return (*ins[0], 1, 1)


def _global_shape(ins: Sequence[Shape], attrs: Attrs) -> Shape:
    n, c, _, _ = _rank4(ins[0])
    return (n, c, 1, 1) if attrs["keepdims"] else (n, c)


def _pad_shape(ins: Sequence[Shape], attrs: Attrs) -> Shape:
    n, c, h, w = _rank4(ins[0])
    top, left, bottom, right = ints(attrs, "padding")
    return (n, c, h + top + bottom, w + left + right)


def _slice_shape(ins: Sequence[Shape], attrs: Attrs) -> Shape:
    start, stop = integer(attrs, "start"), integer(attrs, "stop")
    if not 0 <= start < stop <= ins[0][1]:
        raise ValueError(f"channels {start} to {stop} are not in {ins[0]}")
    return (ins[0][0], stop - start, *ins[0][2:])


def _input_shape(ins: Sequence[Shape], attrs: Attrs) -> Shape:
    return ints(attrs, "shape")


def _pool(ins: Sequence[Shape], attrs: Attrs) -> Shape:
    return _window(ins, attrs, _rank4(ins[0])[1])


_ELEMENTWISE = Kind(_same, _no_macs, _no_weights, elementwise=True)
_IDENTITY = Kind(_same, _no_macs, _no_weights, elementwise=True, identity=True)

#: Activations: one input, element by element, no attribute but those named in `predictors.kinds`.
ACTIVATIONS = ("relu", "relu6", "hard_swish", "hard_sigmoid", "silu", "sigmoid", "tanh", "gelu", "elu", "leaky_relu", "mish")

KINDS: dict[str, Kind] = {
    "input": Kind(_input_shape, _no_macs, _no_weights, min_inputs=0),
    "conv": Kind(_conv_shape, _conv_macs, _conv_weights, weightless=False),
    "linear": Kind(lambda ins, a: (*ins[0][:-1], integer(a, "out_features")), _linear_macs, _linear_weights, weightless=False),
    "batch_norm": Kind(_same, _no_macs, _norm_weights, elementwise=True),
    **dict.fromkeys(ACTIVATIONS, _ELEMENTWISE),
    "prelu": Kind(_same, _no_macs, _channel_weights, elementwise=True),
    "scale": Kind(_same, _no_macs, _channel_weights, elementwise=True),
    "shift": Kind(_same, _no_macs, _channel_bias, elementwise=True),
    "add_scalar": _ELEMENTWISE,
    "mul_scalar": _ELEMENTWISE,
    # Every output channel depends on all channels of its pixel.
    "layer_norm": Kind(_same, _no_macs, _layer_norm_weights),
    "softmax": Kind(_same, _no_macs, _no_weights),
    "log_softmax": Kind(_same, _no_macs, _no_weights),
    "add": Kind(_broadcast, _no_macs, _no_weights, min_inputs=2),
    "mul": Kind(_broadcast, _no_macs, _no_weights, min_inputs=2),
    "concat": Kind(_concat_shape, _no_macs, _no_weights, min_inputs=2),
    "max_pool": Kind(_pool, _no_macs, _no_weights),
    "avg_pool": Kind(_pool, _no_macs, _no_weights),
    "global_avg_pool": Kind(_global_shape, _no_macs, _no_weights),
    "global_max_pool": Kind(_global_shape, _no_macs, _no_weights),
    "flatten": Kind(_flatten_shape, _no_macs, _no_weights),
    "unflatten": Kind(_unflatten_shape, _no_macs, _no_weights),
    "pad": Kind(_pad_shape, _no_macs, _no_weights),
    "slice": Kind(_slice_shape, _no_macs, _no_weights),
    "channel_shuffle": Kind(_shuffle_shape, _no_macs, _no_weights),
    "upsample": Kind(_upsample_shape, _no_macs, _no_weights),
    "dropout": _IDENTITY,
    "stochastic_depth": _IDENTITY,
    "identity": _IDENTITY,
}


def kind_of(name: str) -> Kind:
    """The kind called `name`.

    Raises:
        UnknownNameError: If there is no such kind.
    """
    if name not in KINDS:
        raise UnknownNameError.among("operator kind", name, KINDS)
    return KINDS[name]
