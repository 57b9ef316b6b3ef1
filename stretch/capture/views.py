"""Tensors seen in another order of dimensions: what becomes of them when they are used.

A permutation or a reshape of channels is no operator by itself. It is kept as a
*view* of an operator's tensor until something gives it a meaning: a channel
shuffle, a slice, or operators on channels that lie last. Anything else that
reads a view is refused.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from predictors.shapes import Attr
from stretch.operators.lowerings import lowerings
from stretch.operators.settings import Refusal

Shape = tuple[int, ...]

#: Kinds that compute the same on channels that lie last.
ANY_ORDER = frozenset(name for name in lowerings if lowerings.get(name).any_order)


@dataclass(frozen=True)
class View:
    """How a traced tensor shows an operator's tensor."""

    op: str  # Name of the operator.
    shape: Shape  # Its shape.
    #: ``plain``; ``last`` (N×H×W×C); ``grouped`` (N×G×C/G×H×W); ``swapped`` (N×C/G×G×H×W); ``parts`` (a tuple of channel ranges);
    #: ``picked`` (one channel, its dimension gone); ``tall`` (N×C×1 of N×C); ``expanded`` (N×C×1×1 repeated over height and width).
    form: str = "plain"
    detail: tuple[Any, ...] = ()  # Groups, ranges or channel.

    def plain(self) -> str:
        """The operator's name."""
        if self.form != "plain":
            raise Refusal(f"it reads a tensor that was {_WORDS[self.form]}, which is not supported here")
        return self.op


_WORDS = {
    "last": "permuted to N×H×W×C",
    "grouped": "reshaped to five dimensions",
    "swapped": "reshaped to five dimensions",
    "parts": "split into several",
    "picked": "reduced to one channel without its dimension",
    "tall": "reshaped to N×C×1",
    "expanded": "expanded",
}

#: A view, or (kind, attributes) of an operator that reads the view's tensor.
Seen = View | tuple[str, dict[str, Attr]]


def _as(view: View, form: str, *detail: Any) -> View:
    return View(view.op, view.shape, form, detail)


def _permute(view: View, before: Shape, out: Any, *dims: Any) -> Seen:
    order = dims[0] if len(dims) == 1 and isinstance(dims[0], list | tuple) else dims
    order = tuple(d % len(before) for d in order)
    if order == tuple(range(len(before))):
        return view
    if view.form == "plain" and order == (0, 2, 3, 1):
        return _as(view, "last")
    if view.form == "last" and order == (0, 3, 1, 2):
        return _as(view, "plain")
    if view.form == "grouped" and order == (0, 2, 1, 3, 4):
        return _as(view, "swapped", *view.detail)
    raise Refusal(f"permuting dimensions to {order} is not supported")


def _transpose(view: View, before: Shape, out: Any, a: int, b: int) -> Seen:
    order = list(range(len(before)))
    order[a], order[b] = order[b], order[a]
    return _permute(view, before, out, order)


def _reshape(view: View, before: Shape, out: Shape, *size: Any) -> Seen | None:
    if before == out:
        return view
    shape = view.shape
    if view.form == "plain" and len(shape) == 4 and len(out) == 5 and out == (shape[0], out[1], shape[1] // out[1], *shape[2:]):
        return _as(view, "grouped", out[1])
    if view.form == "grouped" and out == shape:
        return _as(view, "plain")
    if view.form == "swapped" and out == shape:
        return "channel_shuffle", {"groups": view.detail[0]}
    if view.form == "plain" and len(before) == 2 and out == (*before, 1, 1):
        return "unflatten", {}
    return None


def _same(view: View, before: Shape, out: Any, *_: Any, **__: Any) -> Seen:
    return view


def _split(view: View, before: Shape, out: Any, sizes: Any, dim: int = 0) -> Seen:
    view.plain()
    if dim % len(before) != 1:
        raise Refusal(f"splitting along dimension {dim} is not supported, only along channels")
    ranges, at = [], 0
    for part in out:
        ranges.append((at, at + part.shape[1]))
        at += part.shape[1]
    return _as(view, "parts", *ranges)


def _cut(view: View, start: int, stop: int) -> Seen:
    if (start, stop) == (0, view.shape[1]):
        return view if view.form == "plain" else _as(view, "plain")
    return "slice", {"start": start, "stop": stop}


def _getitem(view: View, before: Shape, out: Any, index: Any) -> Seen:
    if view.form == "parts" and isinstance(index, slice):
        return _as(view, "parts", *view.detail[index])
    if view.form == "parts":
        return _cut(view, *view.detail[index])
    view.plain()
    items = index if isinstance(index, tuple) else (index,)
    full = slice(None)
    if len(before) == 2 and len(items) == 4 and items == (full, full, None, None):
        return "unflatten", {}
    if Ellipsis in items:
        at = items.index(Ellipsis)
        items = (*items[:at], *[full] * (len(before) - len(items) + 1), *items[at + 1 :])
    if len(items) > len(before) or any(item != full for i, item in enumerate(items) if i != 1):
        raise Refusal(f"indexing with {index} is not supported, only ranges of channels")
    channels = items[1] if len(items) > 1 else full
    if isinstance(channels, int):
        return _as(view, "picked", channels % before[1])
    if not isinstance(channels, slice) or channels.step not in (None, 1):
        raise Refusal(f"indexing with {index} is not supported, only ranges of channels")
    start, stop, _ = channels.indices(before[1])
    return _cut(view, start, stop)


def _unsqueeze(view: View, before: Shape, out: Shape, dim: int) -> Seen:
    where = dim % (len(before) + 1)
    if view.form == "picked" and where == 1:
        return _cut(view, view.detail[0], view.detail[0] + 1)
    if view.form == "plain" and len(before) == 2 and where == 2:
        return _as(view, "tall")
    if view.form == "tall" and where >= 2:
        return "unflatten", {}
    raise Refusal(f"a new dimension {dim} of a tensor of shape {before} is not supported")


def _expand(view: View, before: Shape, out: Shape, *_: Any) -> Seen:
    view.plain()
    if before == out:
        return view
    if len(before) == 4 and out[:2] == before[:2] and before[2:] == (1, 1):
        return _as(view, "expanded")
    raise Refusal(f"expanding {before} to {out} is not supported")


#: By name of the function or method; None means that another rule may apply.
_RULES: dict[str, Callable[..., Seen | None]] = {
    "permute": _permute,
    "transpose": _transpose,
    "swapaxes": _transpose,
    "view": _reshape,
    "reshape": _reshape,
    "contiguous": _same,
    "clone": _same,
    "chunk": _split,
    "split": _split,
    "getitem": _getitem,
    "unsqueeze": _unsqueeze,
    "expand": _expand,
    "expand_as": _expand,
}


def see(target: str, view: View, before: Shape, out: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Seen | None:
    """What a function that reorders or cuts does to a view; None if it is none, or has a meaning of its own here.

    Args:
        before: Shape of the traced tensor it reads.
        out: Shape of its result, or the result itself where that is a tuple.
    """
    rule = _RULES.get(target)
    return None if rule is None else rule(view, before, out, *args, **kwargs)
