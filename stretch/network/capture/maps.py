"""Feature maps of an exported network's tensors: operators on channels and pixels, however the network has ordered its axes."""

from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod

import torch
from torch import nn

from predictors.graph import Op, unique_name
from predictors.operators import kind_of
from predictors.shapes import Attr, Shape, ints
from predictors.slices import same_slice
from stretch.network.capture.aten import AtenCall, AtenValue, CallRecorder, over_elements, storage_dtype
from stretch.network.capture.axes import (
    Axes,
    Factor,
    FactorKind,
    Unsupported,
    common_factors,
    map_axes,
    rearrangement,
    require,
    require_that,
)
from stretch.operators.opaque.calls import Call

# Tensors that do not depend on the input, and are broadcast to a feature map or to the scores of attention.


def broadcast_over(tensor: torch.Tensor, axes: Axes, over: Sequence[FactorKind]) -> torch.Tensor:
    """Broadcast a tensor to one of known axes, with one axis for each kind of thing in `over`.

    Returns:
        A tensor with one element along axes where it is constant; it must not differ along other axes.
    """
    sizes = (*[1] * (len(axes.axes) - tensor.dim()), *tensor.shape)
    parts, result = [], []
    for size, axis in zip(sizes, axes.axes, strict=True):
        for factor in axis:
            parts.append(1 if size == 1 else factor.size)
            result.append(factor)
    view = tensor.reshape(parts)
    order = [start for of in over for start in sorted((i for i, f in enumerate(result) if f.of == of), key=lambda i: -result[i].step)]
    rest = [i for i in range(len(result)) if i not in order]
    require_that(all(parts[i] == 1 for i in rest))
    view = view.permute(*order, *rest)
    start, shape = 0, []
    for of in over:
        factors = [result[i] for i in order if result[i].of == of]
        axis_sizes = view.shape[start : start + len(factors)]
        if any(size != 1 for size in axis_sizes):
            view = view.expand(*view.shape[:start], *[factor.size for factor in factors], *view.shape[start + len(factors) :])
        shape.append(prod(view.shape[start : start + len(factors)]))
        start += len(factors)
    return view.reshape(shape)


Weights = Mapping[str, torch.Tensor]


@dataclass
class Maps:
    """Operators of a network that is being lowered, and the feature maps among them whose axes are known."""

    compute: Callable[[AtenCall], tuple[AtenValue, ...]]  # Lowers a call whose tensors are feature maps in their own order.
    ops: dict[str, Op] = field(default_factory=dict)  # Operators so far by name, with their shapes.
    weights: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)  # Weights by operator and name.
    #: Operators that compute a part or another order of a second one: the second one's name, and the step from its result to theirs.
    instead: dict[str, tuple[str, Op]] = field(default_factory=dict)
    _known: dict[tuple[object, ...], str] = field(default_factory=dict)
    #: Tensors that were moved out of a map: the map's operator and their axes in it.
    _moved: dict[str, tuple[str, Axes]] = field(default_factory=dict)

    def name_of(self, call: AtenCall, taken: Container[str] = ()) -> str:
        """Return a name for the operator of a call: the path of its module, with the node's name if that is taken."""
        stack = call.node.meta.get("nn_module_stack") or {}
        path = next(reversed(stack.values()))[0] if stack else ""
        path = path.replace("L['self'].", "").replace("L['self']", "").replace(".", "_")
        return self._free_name(
            path if path and path not in self.ops and path not in taken else f"{path}_{call.node.name}".strip("_"), taken
        )

    def _free_name(self, preferred: str, taken: Container[str] = ()) -> str:
        preferred = f"{preferred}_" if hasattr(nn.Module, preferred) else preferred
        return unique_name(preferred, lambda name: name in self.ops or name in taken)

    def add(self, stem: str, kind: str, reads: Sequence[str], attrs: Mapping[str, Attr], weights: Weights | None = None) -> str:
        """Add an operator on maps and return its name; an equal operator without weights is reused."""
        key = (kind, tuple(reads), tuple(sorted(attrs.items())))
        if not weights and key in self._known:
            return self._known[key]
        shape = kind_of(kind).shape([self.ops[read].shape for read in reads], attrs)
        name = self._free_name(stem)
        self.ops[name] = Op(name, kind, tuple(reads), dict(attrs), shape)
        if weights:
            self.weights[name] = dict(weights)
        else:
            self._known[key] = name
        return name

    def axes_of(self, value: AtenValue) -> Axes | None:
        """Return the axes of a tensor; None if they are unknown."""
        if value.axes is not None:
            return value.axes
        op = self.ops.get(value.op)
        if op is None or len(op.shape) != 4 or kind_of(op.kind).stated:
            return None
        return map_axes(op.shape).reshape(value.shape)

    def value(self, op: str, axes: Axes, like: AtenValue) -> AtenValue:
        """Return a map seen along axes; axes are left out if they are the map's own."""
        result = AtenValue(op, axes.shape, base=self.ops[op].shape, dtype=like.dtype)
        map_shape = self.ops[op].shape
        first = axes.shape[:2] == map_shape[:2] and not kind_of(self.ops[op].kind).stated
        is_whole_map = first and map_axes(map_shape).reshape(axes.shape) == axes
        return result if is_whole_map else replace(result, axes=axes)

    def gather(self, value: AtenValue) -> tuple[str, Axes]:
        """Return a map with the channels of a tensor in the tensor's order, and the tensor's axes in that map."""
        axes, op = require(self.axes_of(value)), value.op
        channels = axes.channels()
        if channels != list(range(self.ops[op].shape[1])):
            op = self._select(op, tuple(channels))
        return op, _with_channels_in_order(axes)

    def _select(self, name: str, channels: tuple[int, ...]) -> str:
        """Select channels of a map; a convolution computes only these filters."""
        key = ("select", name, channels)
        if key not in self._known:
            selecting = self._add_selection(self.ops[name], channels)
            if channels == tuple(range(channels[0], channels[-1] + 1)) and self.ops[selecting].kind != "slice":
                bounds: dict[str, Attr] = {"start": channels[0], "stop": channels[-1] + 1}
                self.instead[selecting] = (name, Op(selecting, "slice", (name,), bounds, self.ops[selecting].shape))
            self._known[key] = selecting
        return self._known[key]

    def _add_selection(self, op: Op, channels: tuple[int, ...]) -> str:
        kind, width, attrs = kind_of(op.kind), op.shape[1], dict(op.attrs)
        in_a_row = channels == tuple(range(channels[0], channels[0] + len(channels)))
        rows = slice(channels[0], channels[0] + len(channels)) if in_a_row else list(channels)
        selecting = {key: tensor.detach()[rows] for key, tensor in self.weights.get(op.name, {}).items() if len(tensor) == width}
        stem = f"{op.name}_{'part' if in_a_row else 'ordered'}"
        if op.kind == "conv" and attrs["groups"] == 1:
            return self.add(stem, "conv", op.inputs, {**attrs, "out_channels": len(channels)}, selecting)
        depthwise = op.kind == "conv" and attrs["groups"] == width == self.ops[op.inputs[0]].shape[1]
        if len(op.inputs) == 1 and (depthwise or kind.slices is same_slice):
            with suppress(Unsupported):
                source = self._select(op.inputs[0], channels)
                attributes: dict[str, Attr] = {"out_channels": len(channels), "groups": len(channels)} if depthwise else {}
                return self.add(stem, op.kind, (source,), attrs | attributes, selecting)
        if in_a_row:
            return self.add(stem, "slice", (op.name,), {"start": channels[0], "stop": channels[-1] + 1})
        for groups in (n for n in range(2, width) if width % n == 0):
            shuffled = [first + i for i in range(width // groups) for first in range(0, width, width // groups)]
            start = shuffled.index(channels[0])
            if tuple(shuffled[start : start + len(channels)]) == channels:
                mixed = self.add(f"{op.name}_shuffled", "channel_shuffle", (op.name,), {"groups": groups})
                is_complete = len(channels) == width
                return mixed if is_complete else self.add(stem, "slice", (mixed,), {"start": start, "stop": start + len(channels)})
        raise Unsupported

    def rearrange(self, op: str, axes: Axes, pixels: tuple[int, int] | None = None) -> str:
        """Return a map whose pixels are in the order of the axes.

        Args:
            pixels: Height and width of the result. Default: unchanged if the pixels are in order already, else those of
                the last axis over pixels (width) and all others (height).
        """
        map_shape = self.ops[op].shape
        steps = rearrangement(list(zip(axes.factors("pixel"), axes.sort_factors().factors("pixel"), strict=True)))
        moved = steps[1] != tuple(range(len(steps[1])))
        if pixels is None:
            sizes = [prod(f.size for f in axis if f.of == "pixel") for axis in axes.axes if any(f.of == "pixel" for f in axis)]
            pixels = (map_shape[2], map_shape[3]) if not moved else (prod(sizes[:-1]), sizes[-1])
        return self._with_pixels(op, steps, pixels)

    def _with_pixels(self, op: str, steps: tuple[Shape, Shape], pixels: Shape) -> str:
        """Return a map of this height and width whose pixels are moved by these steps, if they move any."""
        moved = steps[1] != tuple(range(len(steps[1])))
        if not moved and self.ops[op].shape[2:] == pixels:
            return op
        split, order = steps if moved else ((prod(pixels),), (0,))
        return self._add_rearrange(op, {"split": split, "order": order, "pixels": pixels})

    def _add_rearrange(self, name: str, attrs: dict[str, Attr]) -> str:
        """Return a map with its pixels in another order; pointwise operators compute in that order, so that maps of one source share it."""
        op = self.ops[name]
        alone = len(op.inputs) == 1 and not kind_of(op.kind).stated
        pointwise = (
            op.kind == "conv" and (op.attrs["kernel"], op.attrs["stride"]) == ((1, 1), (1, 1)) and not any(ints(op.attrs, "padding"))
        )
        if not alone or not (pointwise or (kind_of(op.kind).elementwise and kind_of(op.kind).weightless)):
            return self.add(f"{name}_pixels", "rearrange", (name,), attrs)
        key = ("rearranged", name, *sorted(attrs.items()))
        if key not in self._known:
            rearranged = self.add(f"{name}_pixels", op.kind, (self._add_rearrange(op.inputs[0], attrs),), op.attrs, self.weights.get(name))
            self.instead[rearranged] = (name, Op(rearranged, "rearrange", (name,), attrs, self.ops[rearranged].shape))
            self._known[key] = rearranged
        return self._known[key]

    def align(self, value: AtenValue, op: str, axes: Axes) -> str:
        """Return the map of a tensor with its pixels in the order of another map.

        Args:
            axes: Axes of the other map, in the tensor's shape.
        """
        current, value_axes = self.gather(value if self.axes_of(value) is not None else self.to_map(value))
        moves: list[tuple[Factor, Factor]] = []
        for seen_axis, axis in zip(value_axes.axes, axes.axes, strict=True):
            pairs = common_factors(seen_axis, axis)
            require_that(all(a.of == b.of and (a.of == "pixel" or a.step == b.step) for a, b in pairs))
            moves += [pair for pair in pairs if pair[0].of == "pixel"]
        steps = rearrangement(moves)
        require_that(self.ops[current].shape[1] == self.ops[op].shape[1])
        return self._with_pixels(current, steps, self.ops[op].shape[2:])

    def to_map(self, value: AtenValue) -> AtenValue:
        """Return a tensor of unknown axes as a map, with its last axis taken as channels."""
        shape, batch = value.shape, next(iter(self.ops.values())).shape[0]
        require_that(value.axes is None and len(shape) > 2 and not shape[0] % batch and value.dtype in (None, torch.float32))
        source = self._moved.get(value.op)
        if source is not None:
            axes = source[1].reshape(shape)
            if axes is not None:
                return self.value(source[0], axes, value)
        rows, tokens, channels = prod(shape[:-2]) // batch, shape[-2], shape[-1]
        op = self.add(
            f"{value.op}_map", "channels_first", (self.reading(replace(value, shape=(batch * rows, tokens, channels))),), {"rows": rows}
        )
        last = require(map_axes(self.ops[op].shape).permute((0, 2, 3, 1)).reshape(shape))
        return AtenValue(op, shape, base=self.ops[op].shape, dtype=value.dtype, axes=last)

    def reading(self, value: AtenValue) -> str:
        """Return the name of the operator that gives the value's tensor in its shape and order; a view is added where they differ."""
        value = self.in_order(value)
        op = self.ops[value.op]
        if op.shape == value.shape:
            return op.name
        if value.shape == op.shape[:2] and op.shape[2:] == (1, 1) and not kind_of(op.kind).stated:
            return self.add(f"{op.name}_vector", "flatten", (op.name,), {})
        return self.add(f"{op.name}_view", "view", (op.name,), {"shape": value.shape})

    def in_order(self, value: AtenValue) -> AtenValue:
        """Return a tensor with its elements in the order of an operator's result."""
        if value.axes is None:
            return value
        try:
            op, axes = self.gather(value)
        except Unsupported:
            index = torch.tensor(value.axes.channels())
            chosen = AtenValue("", tuple(index.shape), dtype=index.dtype, tensor=index)
            width = self.ops[value.op].shape
            op = self._opaque(
                value, (width[0], len(index), *width[2:]), lambda constant, x: (Call("index_select.default", (x, 1, constant(chosen))),)
            )
            axes = _with_channels_in_order(value.axes)
        kinds = [factor.of for axis in axes.axes for factor in axis]
        if kinds == sorted(kinds, key=("image", "channel", "pixel").index):
            with suppress(Unsupported):
                ordered = self._as_map(op, axes)
                return replace(value, op=ordered, base=self.ops[ordered].shape, axes=None)
        name = self._permute(value, op, axes)
        return replace(value, op=name, base=value.shape, axes=None)

    def _as_map(self, op: str, axes: Axes) -> str:
        """Return a tensor whose pixels follow its channels, in its own shape if an operator of a family can give it."""
        shape = axes.shape
        if len(shape) == 2 and self.ops[op].shape[2:] == (1, 1) and shape == self.ops[op].shape[:2]:
            return self.add(f"{op}_vector", "flatten", (op,), {})
        as_image = len(shape) == 4 and shape[:2] == self.ops[op].shape[:2]
        return self.rearrange(op, axes, (shape[2], shape[3]) if as_image else None)

    def _permute(self, value: AtenValue, op: str, axes: Axes) -> str:
        """Permute the elements of a map into the order of axes, by calls of torch."""
        factors = [factor for axis in axes.axes for factor in axis]
        order = {"image": 0, "channel": 1, "pixel": 2}
        stored = sorted(factors, key=lambda factor: (order[factor.of], -factor.step))
        sizes, perm = [factor.size for factor in stored], [stored.index(factor) for factor in factors]
        calls = lambda constant, x: (  # noqa: E731 - it is handed on at once
            Call("reshape.default", (x, sizes)),
            Call("permute.default", ({"call": 0}, perm)),
            Call("reshape.default", ({"call": 1}, list(value.shape))),
        )
        name = self._opaque(replace(value, op=op, axes=None), value.shape, calls)
        self._moved[name] = (op, axes)
        return name

    def _opaque(self, value: AtenValue, shape: Shape, calls: Callable[[CallRecorder, object], tuple[Call, ...]]) -> str:
        """Add an opaque operator that computes some calls on a whole map."""
        recorder = CallRecorder()
        full_value = AtenValue(value.op, self.ops[value.op].shape, dtype=storage_dtype(value.dtype))
        built = calls(recorder, recorder(full_value))
        step = recorder.step(over_elements(shape, "copy", "permute"), built)
        return self.add(f"{value.op}_moved", "opaque", (value.op,), step.attrs, step.weights)

    def channels_last(self, value: AtenValue) -> tuple[str, Axes]:
        """Return a map whose channels are the last axis of a tensor.

        If the network has put pixels into the last axis, as in patch merging, they become channels of a new map.
        """
        op, axes = self.gather(value if self.axes_of(value) is not None else self.to_map(value))
        last = axes.axes[-1]
        channels = [factor for factor in last if factor.of == "channel"]
        merged = [factor for factor in last if factor.of == "pixel"]
        require_that(prod(f.size for f in channels) == self.ops[op].shape[1] and list(last) == [*merged, *channels])
        return self._merge(op, axes, merged) if merged else (op, axes)

    def _merge(self, op: str, axes: Axes, merged: Sequence[Factor]) -> tuple[str, Axes]:
        """Return a map that has a channel for each channel and each of some neighbouring pixels."""
        h, w = self.ops[op].shape[2:]
        remaining = [factor for axis in axes.axes[:-1] for factor in axis if factor.of == "pixel"]
        rows, columns = [f for f in remaining if f.step % w == 0], [f for f in remaining if f.step % w]
        step = (min((f.step // w for f in rows), default=h), min((f.step for f in columns), default=w))
        size = (h // step[0], w // step[1])
        require_that(not h % step[0] and not w % step[1] and (prod(f.size for f in rows), prod(f.size for f in columns)) == size)
        parts = []
        for digits in product(*[range(factor.size) for factor in merged]):
            index = sum(digit * factor.step for digit, factor in zip(digits, merged, strict=True))
            attrs: dict[str, Attr] = {"start": (index // w, index % w), "stop": (h, w), "step": step}
            part = self.add(f"{op}_sampled", "subsample", (op,), attrs)
            require_that(self.ops[part].shape[2:] == size)
            parts.append(part)
        merged_op = self.add(f"{op}_merged", "concat", parts, {}) if len(parts) > 1 else parts[0]
        steps = {f: f.step // w // step[0] * size[1] if f in rows else f.step // step[1] for f in remaining}
        inner = tuple(tuple(replace(f, step=steps[f]) if f.of == "pixel" else f for f in axis) for axis in axes.axes[:-1])
        return merged_op, Axes((*inner, (Factor("channel", self.ops[merged_op].shape[1], 1),)))


def _with_channels_in_order(axes: Axes) -> Axes:
    """Return the axes over a map that has only the tensor's channels, in the tensor's order; pixels keep their places."""
    ordered = axes.sort_factors()
    rows = [
        tuple(new if old.of == "channel" else old for old, new in zip(before, after, strict=True))
        for before, after in zip(axes.axes, ordered.axes, strict=True)
    ]
    return Axes(tuple(rows)).merge()
