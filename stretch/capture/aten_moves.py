"""ATen operators that see, select or order the elements of a tensor: views where no runtime moves anything, else copies."""

from math import prod

from torch import fx

from predictors.registry import Rules
from predictors.shapes import Attr, Shape
from stretch.capture.aten_call import AtenCall, AtenRule, Made, Step, Value
from stretch.capture.aten_opaque import over_elements

#: By name of the ATen operator without its overload.
MOVES: Rules[AtenRule] = Rules()

_add = MOVES.add


def _copy(x: Value, shape: Shape, variant: str, weights: int = 0) -> list[Step]:
    return [Step("opaque", over_elements(shape, "copy", variant, weights), (x,))]


@_add(
    *("detach", "alias", "contiguous", "clone", "lift_fresh_copy", "to", "_to_copy", "type_as", "dropout", "feature_dropout"),
    *("alpha_dropout", "native_dropout", "dropout2d", "identity", "view_of"),
)
def _same(call: AtenCall) -> Made:
    """The tensor itself: precision is the processor's matter, and nothing is dropped at inference."""
    x = call.tensors[0]
    return x if x.shape == call.out else None


@_add("view", "reshape", "_unsafe_view", "unflatten", "unsqueeze", "squeeze", "view_as", "_reshape_alias", "reshape_as")
def _view(call: AtenCall) -> Made:
    x = call.tensors[0]
    if len(x.shape) == 2 and call.out == (*x.shape, 1, 1) and x.shape == (x.base or x.shape):
        return [Step("unflatten", {}, (x,))]
    if len(x.shape) == 4 and call.out == (x.shape[0], prod(x.shape[1:])) and x.shape == (x.base or x.shape):
        return [Step("flatten", {}, (x,))]
    return x.seen(call.out)


MOVES["flatten"] = _view


@_add("expand", "expand_as", "broadcast_to")
def _expand(call: AtenCall) -> Made:
    x = call.tensors[0]
    return x if x.shape == call.out else [Step("view", {"shape": call.out}, (x,))]


@_add("permute", "transpose", "t", "swapaxes", "movedim", "numpy_T", "adjoint")
def _permute(call: AtenCall) -> Made:
    """Free where only the order of an image's channels and pixels changes, which each runtime keeps as it likes."""
    x = call.tensors[0]
    order = _order(call, len(x.shape))
    if order is None:
        return None
    moved = [d for d in order if x.shape[d] != 1]
    if moved == sorted(moved) or order in ((0, 2, 3, 1), (0, 3, 1, 2)) or (order == (0, 2, 1) and _is_image(call, x)):
        return x.seen(call.out)
    return _copy(x, call.out, "permute")


def _order(call: AtenCall, rank: int) -> tuple[int, ...] | None:
    if call.operator == "permute":
        return tuple(int(d) % rank for d in call.given["dims"])
    order = list(range(rank))
    if call.operator in ("t", "numpy_T"):
        return tuple(reversed(order))
    if call.operator == "movedim":
        return None
    a, b = (
        (-2, -1)
        if call.operator == "adjoint"
        else (call.given.get("dim0", call.given.get("axis0")), call.given.get("dim1", call.given.get("axis1")))
    )
    order[a], order[b] = order[b], order[a]
    return tuple(order)


def _is_image(call: AtenCall, x: Value) -> bool:
    """Whether a tensor N×C×P or N×P×C is seen as an image before or after its last two axes change places."""
    n, channels, pixels = x.shape
    if len(x.base) == 4 and x.base[:2] == (n, channels) and prod(x.base[2:]) == pixels:
        return True
    after = [_shape(reader) for reader in call.node.users]
    # tokens N×P×C that become an image N×C×H×W
    return bool(after) and all(len(shape) == 4 and shape[:2] == (n, pixels) and prod(shape[2:]) == channels for shape in after)


def _shape(node: fx.Node) -> Shape:
    return tuple(getattr(node.meta.get("val"), "shape", ()))


def _cut(x: Value, dim: int, start: int, out: Shape) -> Step:
    """What copies a piece: channels of an image or a vector by their own kind."""
    if dim == 1 and len(x.shape) in (2, 4) and len(out) == len(x.shape):
        return Step("slice", {"start": start, "stop": start + out[1]}, (x,))
    return Step("opaque", over_elements(out, "copy", "slice"), (x,))


@_add("slice", "narrow")
def _slice(call: AtenCall) -> Made:
    x, dim = call.tensors[0], int(call.given["dim"]) % len(call.out)
    if x.shape == call.out:
        return x
    start = int(call.given.get("start") or 0)
    if call.given.get("step", 1) != 1:
        return _copy(x, call.out, "slice")
    return [_cut(x, dim, start + x.shape[dim] if start < 0 else start, call.out)]


@_add("select")
def _select(call: AtenCall) -> Made:
    x = call.tensors[0]
    return x.seen(call.out) if prod(x.shape) == prod(call.out) else _copy(x, call.out, "slice")


@_add("split", "chunk", "split_with_sizes", "unbind", "tensor_split", "unsafe_split", "unsafe_chunk")
def _split(call: AtenCall) -> Made:
    """Pieces along one axis, each copied where it is used."""
    x, dim, at = call.tensors[0], int(call.given["dim"]) % len(call.tensors[0].shape), 0
    if len(call.shapes) == 1:
        return (x.seen(call.out),)
    pieces = []
    for shape in call.shapes:
        pieces.append(Value(x.op, shape, piece=_cut(x, dim, at, shape)))
        at += 1 if call.operator == "unbind" else shape[dim]
    return tuple(pieces)


@_add("cat", "concat", "concatenate")
def _concat(call: AtenCall) -> Made:
    parts = call.tensors
    if not call.constants and len(parts) == 1:
        return parts[0]
    if not call.constants and int(call.given["dim"]) % len(call.out) == 1:
        return [Step("concat", {}, tuple(parts))]
    return [Step("opaque", over_elements(call.out, "copy", "concat", call.constants), tuple(parts))]


@_add("pad", "constant_pad_nd")
def _pad(call: AtenCall) -> Made:
    x, pad = call.tensors[0], [int(n) for n in call.given["pad"]]
    if not any(pad):
        return x
    zero = call.given.get("mode", "constant") == "constant" and call.given.get("value") in (None, 0, 0.0)
    if not zero or len(x.shape) != 4 or any(pad[4:]) or min(pad) < 0:
        return _copy(x, call.out, "pad")
    left, right, top, bottom = [*pad, 0, 0, 0, 0][:4]
    attrs: dict[str, Attr] = {"padding": (top, left, bottom, right)}
    return [Step("pad", attrs, (x,))]
