"""Python code of operators without weights: functions of torch."""

from math import inf
from typing import Any

from predictors.graph import Op
from predictors.shapes import Shape, integer, ints, number
from stretch.emit.code import OWN, Code, call, codes, literal
from stretch.operators.move import ChannelShuffle
from stretch.operators.passing import StochasticDepth

_PLAIN = {
    "relu": "F.relu({0})",
    "relu6": "F.relu6({0})",
    "hard_swish": "F.hardswish({0})",
    "hard_sigmoid": "F.hardsigmoid({0})",
    "silu": "F.silu({0})",
    "sigmoid": "torch.sigmoid({0})",
    "tanh": "torch.tanh({0})",
    "mish": "F.mish({0})",
    "softmax": "F.softmax({0}, dim=1)",
    "log_softmax": "F.log_softmax({0}, dim=1)",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "channel_mean": "{0}.mean(1, keepdim=True)",
    "flatten": "{0}.flatten(1)",
    "unflatten": "{0}[:, :, None, None]",
}


def _plain(expression: str) -> Any:
    return lambda op, shapes: Code(expression)


for _kind, _expression in _PLAIN.items():
    codes.register(_kind)(_plain(_expression))
codes.register("identity")(lambda op, shapes: Code(passes=True))


def _applied(function: str, *arguments: Any, **settings: Any) -> Code:
    """A function of the one tensor that it reads, with literal settings; those that are None are left out."""
    texts = [literal(argument) for argument in arguments] + [
        f"{key}={literal(value)}" for key, value in settings.items() if value is not None
    ]
    return Code(f"{function}({', '.join(['{0}', *texts])})")


def _same(sizes: tuple[int, ...]) -> int | tuple[int, ...]:
    return sizes[0] if len(set(sizes)) == 1 else sizes


@codes.register("clamp")
def _clamp(op: Op, shapes: list[Shape]) -> Code:
    return _applied("torch.clamp", number(op.attrs, "low"), number(op.attrs, "high"))


@codes.register("gelu")
def _gelu(op: Op, shapes: list[Shape]) -> Code:
    form = str(op.attrs["approximate"])
    return _applied("F.gelu", approximate=None if form == "none" else form)


@codes.register("elu")
def _elu(op: Op, shapes: list[Shape]) -> Code:
    return _applied("F.elu", alpha=number(op.attrs, "alpha"))


@codes.register("leaky_relu")
def _leaky_relu(op: Op, shapes: list[Shape]) -> Code:
    return _applied("F.leaky_relu", number(op.attrs, "slope"))


@codes.register("add")
def _add(op: Op, shapes: list[Shape]) -> Code:
    return Code(" + ".join(f"{{{i}}}" for i in range(len(shapes))))


@codes.register("add_scalar")
def _add_scalar(op: Op, shapes: list[Shape]) -> Code:
    return Code(f"{{0}} + {literal(number(op.attrs, 'value'))}")


@codes.register("mul_scalar")
def _mul_scalar(op: Op, shapes: list[Shape]) -> Code:
    return Code(f"{{0}} * {literal(number(op.attrs, 'value'))}")


def _side_by_side(dim: int) -> Any:
    return lambda op, shapes: Code(f"torch.cat([{', '.join(f'{{{i}}}' for i in range(len(shapes)))}], dim={dim})")


codes.register("concat")(_side_by_side(1))
codes.register("concat_rows")(_side_by_side(2))


@codes.register("slice")
def _slice(op: Op, shapes: list[Shape]) -> Code:
    return Code(f"{{0}}[:, {integer(op.attrs, 'start')} : {integer(op.attrs, 'stop')}]")


@codes.register("slice_rows")
def _slice_rows(op: Op, shapes: list[Shape]) -> Code:
    return Code(f"{{0}}[:, :, {integer(op.attrs, 'start')} : {integer(op.attrs, 'stop')}]")


@codes.register("view")
def _view(op: Op, shapes: list[Shape]) -> Code:
    shape = ints(op.attrs, "shape")
    return Code(f"{{0}}.reshape({', '.join(map(str, (-1, *shape[1:])))})" if shape else "{0}.reshape(())")


@codes.register("pad")
def _pad(op: Op, shapes: list[Shape]) -> Code:
    top, left, bottom, right = ints(op.attrs, "padding")
    return _applied("F.pad", (left, right, top, bottom))


@codes.register("upsample")
def _upsample(op: Op, shapes: list[Shape]) -> Code:
    return _applied("F.interpolate", scale_factor=tuple(map(float, ints(op.attrs, "scale"))), mode="nearest")


@codes.register("channel_shuffle")
def _channel_shuffle(op: Op, shapes: list[Shape]) -> Code:
    return Code(f"{OWN}({{0}})", call("ChannelShuffle", integer(op.attrs, "groups")), helpers=(ChannelShuffle,))


@codes.register("dropout")
def _dropout(op: Op, shapes: list[Shape]) -> Code:
    return Code(f"F.dropout({{0}}, {literal(number(op.attrs, 'p'))}, self.training)")


@codes.register("stochastic_depth")
def _stochastic_depth(op: Op, shapes: list[Shape]) -> Code:
    construction = call("StochasticDepth", number(op.attrs, "p"), str(op.attrs["mode"]))
    return Code(f"{OWN}({{0}})", construction, helpers=(StochasticDepth,))


def _window(op: Op) -> dict[str, Any]:
    return {"stride": _same(ints(op.attrs, "stride")), "ceil_mode": bool(op.attrs["ceil_mode"]) or None}


def _sides(op: Op) -> tuple[int, int, int, int]:
    """Left, right, top, bottom, as `F.pad` wants them."""
    top, left, bottom, right = ints(op.attrs, "padding")
    return left, right, top, bottom


@codes.register("max_pool")
def _max_pool(op: Op, shapes: list[Shape]) -> Code:
    left, right, top, bottom = _sides(op)
    settings = {**_window(op), "dilation": None if ints(op.attrs, "dilation") == (1, 1) else _same(ints(op.attrs, "dilation"))}
    if (top, left) == (bottom, right):
        return _applied("F.max_pool2d", _same(ints(op.attrs, "kernel")), **settings, padding=_same((top, left)) or None)
    padded = f"F.pad({{0}}, {literal(_sides(op))}, value={literal(-inf)})"
    return _cut(op, _applied("F.max_pool2d", _same(ints(op.attrs, "kernel")), **settings).expression.replace("{0}", padded))


@codes.register("avg_pool")
def _avg_pool(op: Op, shapes: list[Shape]) -> Code:
    left, right, top, bottom = _sides(op)
    counted = bool(op.attrs["count_include_pad"])
    if (top, left) == (bottom, right):
        settings = {**_window(op), "padding": _same((top, left)) or None, "count_include_pad": None if counted else False}
        return _applied("F.avg_pool2d", _same(ints(op.attrs, "kernel")), **settings)
    total = _applied("F.avg_pool2d", _same(ints(op.attrs, "kernel")), **_window(op), divisor_override=1).expression
    sides = literal(_sides(op))
    ones = "torch.ones_like({0}[:1, :1])"
    count = total.replace("{0}", f"F.pad({ones}, {sides}, value={float(counted)})")
    return _cut(op, f"({total.replace('{0}', f'F.pad({{0}}, {sides})')} / {count})")


def _cut(op: Op, pooled: str) -> Code:
    """Without windows that torch adds because what was padded beforehand counts as image."""
    return Code(f"{pooled}[..., : {op.shape[2]}, : {op.shape[3]}]")


def _global(function: str) -> Any:
    def rule(op: Op, shapes: list[Shape]) -> Code:
        pooled = f"{function}({{0}}, 1)"
        return Code(pooled if op.attrs["keepdims"] else f"{pooled}.flatten(1)")

    return rule


codes.register("global_avg_pool")(_global("F.adaptive_avg_pool2d"))
codes.register("global_max_pool")(_global("F.adaptive_max_pool2d"))


@codes.register("global_l2_norm")
def _global_l2_norm(op: Op, shapes: list[Shape]) -> Code:
    return _applied("torch.linalg.vector_norm", dim=(2, 3), keepdim=bool(op.attrs["keepdims"]))


@codes.register("roll")
def _roll(op: Op, shapes: list[Shape]) -> Code:
    return _applied("torch.roll", ints(op.attrs, "shift"), (2, 3))


@codes.register("subsample")
def _subsample(op: Op, shapes: list[Shape]) -> Code:
    ranges = zip(*(ints(op.attrs, key) for key in ("start", "stop", "step")), strict=True)
    return Code(f"{{0}}[:, :, {', '.join(':'.join(map(str, bounds)) for bounds in ranges)}]")


@codes.register("channels_first")
def _channels_first(op: Op, shapes: list[Shape]) -> Code:
    return Code(f"{{0}}.unflatten(0, (-1, {integer(op.attrs, 'rows')})).permute(0, 3, 1, 2)")


@codes.register("rearrange")
def _rearrange(op: Op, shapes: list[Shape]) -> Code:
    split, order, pixels = (ints(op.attrs, key) for key in ("split", "order", "pixels"))
    put = f".flatten(2).unflatten(2, {literal(pixels)})"
    if order == tuple(range(len(order))):
        return Code(f"{{0}}{put}")
    axes = ", ".join(map(str, (0, 1, *(axis + 2 for axis in order))))
    return Code(f"{{0}}.flatten(2).unflatten(2, {literal(split)}).permute({axes}){put}")
