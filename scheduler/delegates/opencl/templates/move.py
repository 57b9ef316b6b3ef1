"""Operators that compute nothing: another layout, shape, order or slice of the same elements."""

from dataclasses import replace
from math import prod

import numpy as np

from scheduler.delegates.opencl.graph import KernelNode
from scheduler.delegates.opencl.launch import Float, Ints, Launch, TensorArgument
from scheduler.delegates.opencl.lowering import KernelLowering, UnsupportedError
from scheduler.delegates.opencl.templates.parts import defines, light_grid
from scheduler.delegates.opencl.tensors import TensorView


def move_launch(
    state: KernelLowering,
    source: TensorView,
    target: TensorView,
    name: str,
    *,
    start: tuple[int, int, int, int] = (0, 0, 0, 0),
    scale: tuple[int, int, int, int] = (1, 1, 1, 1),
    fill: float = 0.0,
    pad_lanes: bool = True,
) -> Launch:
    """A copy element by element, with a map of the indices."""
    n, channels, height, width = target.image
    _, c, h, w = source.image
    block = target.lanes if not target.plain else source.lanes
    more, grid, local = light_grid(state.traits, -(-channels // block), height * width, n)
    last = 0 if target.plain or not pad_lanes else block - 1
    macros = defines(XPLAIN=source.plain, YPLAIN=target.plain, BX=source.lanes, BY=target.lanes, BLOCK=block, LAST=last, **more)
    arguments = (
        TensorArgument(source),
        TensorArgument(target, written=True),
        Ints((c, h, w, 0)),
        Ints((channels, height, width, 0)),
        Ints(start),
        Ints(scale),
        Float(fill),
    )
    words = f"{'x'.join(map(str, source.shape))}{':plain' if source.plain else ''}->{'x'.join(map(str, target.shape))}{':plain' if target.plain else ''}"
    return Launch("move", name, macros, arguments, grid, words, local=local)


def identity(state: KernelLowering, node: KernelNode) -> None:
    """An output that is its input under another name."""
    name = node.inputs[0]
    state.alias(node.output, state.plain(name) if state.is_plain(name) or len(state.shape(name)) not in (2, 4) else state.blocked(name))


def reshape(state: KernelLowering, node: KernelNode) -> None:
    """Another shape: of one pixel an image nothing moves, else elements are brought in row-major order."""
    name, shape = node.inputs[0], state.shape(node.output)
    before = state.shape(name)
    if _pixels(before) == _pixels(shape) == 1 and before[:2] == shape[:2] and not state.is_plain(name):
        state.alias(node.output, state.blocked(name).reshaped(shape))
    else:
        state.alias(node.output, state.plain(name).reshaped(shape))


def _pixels(shape: tuple[int, ...]) -> int:
    return prod(shape[2:]) if len(shape) in (2, 4) else 0


def concat(state: KernelLowering, node: KernelNode) -> None:
    """Channels side by side, where parts that were written in place are not copied; or rows below each other."""
    if len(state.shape(node.output)) != 4 or node.attrs["axis"] % 4 not in (1, 2):
        raise UnsupportedError("tensors are joined along the channels or rows of images only")
    if node.attrs["axis"] % 4 == 2:
        _concat_rows(state, node)
        return
    target = state.result(node.output)
    if any(state.in_slice(name) for name in node.inputs):
        target = state.blocked(node.output)
    first = 0
    for name in node.inputs:
        channels = state.shape(name)[1]
        written = state.in_slice(name) and state.blocked(name).buffer == target.buffer
        if not written:
            n, _, h, w = target.image
            whole = replace(target, shape=(n, channels, h, w))
            state.add(move_launch(state, state.blocked(name), whole, node.name, start=(0, 0, 0, first), pad_lanes=False))
        first += channels


def _concat_rows(state: KernelLowering, node: KernelNode) -> None:
    target, first = state.result(node.output), 0
    for name in node.inputs:
        count = state.shape(name)[2]
        state.add(move_launch(state, state.blocked(name), target.rows(first, count), node.name))
        first += count


def pad(state: KernelLowering, node: KernelNode) -> None:
    """Constant borders of height and width."""
    pads = [int(p) for p in state.constant(node.inputs[1])]
    if node.attrs.get("mode", b"constant") != b"constant":
        raise UnsupportedError(f"pads of mode {node.attrs['mode'].decode()} are not computed")
    axes = [int(a) % 4 for a in state.constant(node.inputs[3])] if len(node.inputs) > 3 and node.inputs[3] else [0, 1, 2, 3]
    before, after = dict(zip(axes, pads, strict=False)), dict(zip(axes, pads[len(axes) :], strict=False))
    if len(state.shape(node.output)) != 4 or any(before.get(a) or after.get(a) for a in (0, 1)):
        raise UnsupportedError("pads of height and width only are computed")
    value = state.constant(node.inputs[2]).item() if len(node.inputs) > 2 and node.inputs[2] else 0.0
    source, target = state.blocked(node.inputs[0]), state.result(node.output)
    state.add(move_launch(state, source, target, node.name, start=(0, before.get(2, 0), before.get(3, 0), 0), fill=float(value)))


def resize(state: KernelLowering, node: KernelNode) -> None:
    """Nearest neighbour by whole factors."""
    scales = [float(s) for s in state.constant(node.inputs[2])] if len(node.inputs) > 2 and node.inputs[2] else []
    mode = (node.attrs.get("mode", b"nearest"), node.attrs.get("coordinate_transformation_mode"), node.attrs.get("nearest_mode"))
    whole = len(scales) == 4 and scales[:2] == [1, 1] and all(s >= 1 and s == int(s) for s in scales)
    if not whole or mode != (b"nearest", b"asymmetric", b"floor"):
        raise UnsupportedError("images are enlarged by whole factors and nearest neighbours only")
    source, target = state.blocked(node.inputs[0]), state.result(node.output)
    state.add(move_launch(state, source, target, node.name, scale=(int(scales[2]), int(scales[3]), 1, 1)))


def shuffle(state: KernelLowering, node: KernelNode) -> None:
    """Channels of groups taken by turns."""
    groups = int(node.attrs["groups"])
    source, target = state.blocked(node.inputs[0]), state.result(node.output)
    state.add(move_launch(state, source, target, node.name, scale=(1, 1, groups, source.image[1] // groups)))


def slice_(state: KernelLowering, node: KernelNode) -> None:
    """Some channels, a view where they start at a block, else a copy; or some rows, a view."""
    starts, ends = state.constant(node.inputs[1]), state.constant(node.inputs[2])
    shape = state.shape(node.inputs[0])
    axes = (
        [int(a) % len(shape) for a in state.constant(node.inputs[3])]
        if len(node.inputs) > 3 and node.inputs[3]
        else list(range(len(starts)))
    )
    steps = state.constant(node.inputs[4]) if len(node.inputs) > 4 and node.inputs[4] else np.ones(len(starts))
    if axes not in ([1], [2]) or steps[0] != 1 or (len(shape) != 4 and (axes, len(shape)) != ([1], 2)) or len(ends) != 1:
        raise UnsupportedError("slices of channels or rows only are computed")
    first = int(starts[0]) if starts[0] >= 0 else shape[axes[0]] + int(starts[0])
    count = state.shape(node.output)[axes[0]]
    source = state.blocked(node.inputs[0])
    if axes == [2]:
        state.alias(node.output, source.rows(first, count))
    elif first % source.lanes == 0:
        state.alias(node.output, source.channels(first, count))
    else:
        state.add(move_launch(state, source, state.result(node.output), node.name, start=(first, 0, 0, 0)))
