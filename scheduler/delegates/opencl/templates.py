"""Templates, one function per operator, that turn a node into launches; `TEMPLATES` lists them, and `lower` applies them to a graph."""

from collections.abc import Callable
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np

from scheduler.delegates.base import Array, UnableError
from scheduler.delegates.opencl.convolutions import convolution, linear
from scheduler.delegates.opencl.device import FOLDERS, Traits
from scheduler.delegates.opencl.graph import NONE, KernelGraph, KernelNode
from scheduler.delegates.opencl.launch import (
    Argument,
    Blocking,
    Defines,
    Launch,
    TensorArgument,
    TensorView,
    Weights,
    image_shape,
    row_major_view,
)
from scheduler.delegates.opencl.lowering import (
    CPU_LIGHT,
    KernelLowering,
    activation,
    activation_arguments,
    as_float,
    defines,
    describe,
    light_grid,
    line_local,
    strides,
)
from scheduler.delegates.opencl.schedule import Options, Schedules


def unary(state: KernelLowering, node: KernelNode) -> None:
    """Lower an activation that is merged into no other kernel."""
    _launch(state, node, TensorArgument(state.blocked(node.inputs[0])), None, "first")


def binary(state: KernelLowering, node: KernelNode) -> None:
    """Lower an addition, product or PReLU of two tensors, one of which may be constant or repeated along dimensions."""
    shape = state.shape(node.output)
    names = list(node.inputs)
    if names[0] in state.graph.constants and node.attrs["function"] != "prelu":
        names.reverse()
    x, z = (_operand(state, name, shape) for name in names)
    _launch(state, node, x, z, node.attrs["function"])


def scale_shift(state: KernelLowering, node: KernelNode) -> None:
    """Lower a batch-norm that follows no convolution, with one factor and one offset per channel."""
    shape = state.shape(node.output)
    if len(shape) not in (2, 4):
        raise UnableError(f"the tensor has rank {len(shape)}, 2 or 4 are computed")
    per_channel = (-1, *[1] * (len(shape) - 2))
    scale = constant_operand(state, f"{node.name}.scale", state.constant(node.inputs[1]).reshape(per_channel), shape)
    shift = constant_operand(state, f"{node.name}.shift", state.constant(node.inputs[2]).reshape(per_channel), shape)
    x = TensorArgument(state.blocked(node.inputs[0]))
    scaled = state.blocking.blocked(f"{node.output}:scaled", shape)
    first = replace(node, attrs={**node.attrs, "activation": NONE})
    _launch(state, first, x, scale, "mul", scaled)
    _launch(state, node, TensorArgument(scaled), shift, "add")


def _operand(state: KernelLowering, name: str, shape: tuple[int, ...]) -> TensorArgument:
    if name in state.graph.constants:
        return constant_operand(state, name, state.graph.constants[name], shape)
    if len(state.shape(name)) != len(shape):
        raise UnableError(f"`{name}` has rank {len(state.shape(name))}, the result {len(shape)}")
    return TensorArgument(_repeated(state.blocked(name), shape))


def constant_operand(state: KernelLowering, name: str, values: Array, shape: tuple[int, ...]) -> TensorArgument:
    """Return a constant, expanded to the rank of the result and converted to blocks."""
    if values.ndim > len(shape):
        raise UnableError(f"the constant `{name}` has a higher rank than the result")
    operand_shape = image_shape((1,) * (len(shape) - values.ndim) + values.shape)
    packed = to_blocks(np.asarray(values, np.float32).reshape(operand_shape), state.blocking)
    view = replace(state.blocking.blocked(f"{name}:constant", operand_shape), owner="constant")
    return TensorArgument(_repeated(view, image_shape(shape)), values=packed)


def to_blocks(values: Array, blocking: Blocking) -> Array:
    """Return an N×C×H×W array in the layout of a blocked tensor, with zeros in the lanes after the last channel."""
    n, c, h, w = values.shape
    blocks = blocking.blocks(c)
    padded = np.zeros((n, blocks * blocking.lanes, h, w), np.float32)
    padded[:, :c] = values
    split = padded.reshape(n, blocks, blocking.lanes, h, w)
    return np.ascontiguousarray(split.transpose((0, 3, 4, 1, 2) if blocking.blocks_inside else (0, 1, 3, 4, 2)))


def _repeated(view: TensorView, shape: tuple[int, ...]) -> TensorView:
    """Return a view whose strides repeat axes of size 1 where the result is larger."""
    strides = tuple(
        0 if size == 1 and result_size > 1 else stride
        for size, result_size, stride in zip(view.image, image_shape(shape), view.strides, strict=True)
    )
    n, b, h, w = strides
    return replace(view, strides=(n, b, h, w))


def _launch(
    state: KernelLowering, node: KernelNode, x: TensorArgument, z: TensorArgument | None, function: str, target: TensorView | None = None
) -> None:
    shape = state.shape(node.output)
    if len(shape) not in (2, 4):
        raise UnableError(f"the tensor has rank {len(shape)}, 2 or 4 are computed")
    n, c, h, w = image_shape(shape)
    act = activation(node)
    y = target or state.result(node.output)
    grid_macros, grid, local = light_grid(state.traits, state.blocking.blocks(c), h * w, n)
    splat = [int(t is not None and c > 1 and t.view.image[1] == 1) for t in (x, z)]
    macros = defines(ACT=act.macro, OP=f"OP_{function}", BINARY=z is not None, SPLAT_X=splat[0], SPLAT=splat[1], **grid_macros)
    operands: tuple[Argument, ...] = (x,) if z is None else (x, z)
    arguments = (*operands, TensorArgument(y, written=True), (n, state.blocking.blocks(c), h, w), *activation_arguments(act))
    shapes = [shape] if z is None else [x.view.shape, z.view.shape]
    state.add(
        Launch(
            "elementwise",
            node.name,
            macros,
            arguments,
            grid,
            describe(node, *shapes),
            macs=prod(shape) if z is not None else 0,
            local=local,
        )
    )


def identity(state: KernelLowering, node: KernelNode) -> None:
    """Make the output an alias of the input."""
    name = node.inputs[0]
    state.alias(
        node.output, state.row_major(name) if state.is_row_major_only(name) or len(state.shape(name)) not in (2, 4) else state.blocked(name)
    )


def reshape(state: KernelLowering, node: KernelNode) -> None:
    """Lower a change of shape: nothing moves for images of one pixel, else elements are brought into row-major order."""
    name, shape = node.inputs[0], state.shape(node.output)
    before = state.shape(name)
    if _pixels(before) == _pixels(shape) == 1 and before[:2] == shape[:2] and not state.is_row_major_only(name):
        state.alias(node.output, state.blocked(name).reshape(shape))
    else:
        state.alias(node.output, state.row_major(name).reshape(shape))


def _pixels(shape: tuple[int, ...]) -> int:
    return prod(shape[2:]) if len(shape) in (2, 4) else 0


def concat(state: KernelLowering, node: KernelNode) -> None:
    """Lower a concatenation of channels, without copies of parts that were written in place, or of rows."""
    if len(state.shape(node.output)) != 4 or node.attrs["axis"] % 4 not in (1, 2):
        raise UnableError("tensors are joined along the channels or rows of images only")
    if node.attrs["axis"] % 4 == 2:
        _concat_rows(state, node)
        return
    view = state.joined_view(node.inputs)
    if view is not None and view.buffer != node.output and node.output not in state.graph.outputs:
        state.alias(node.output, view)
        return
    target = state.result(node.output)
    if any(state.is_slice(name) for name in node.inputs):
        target = state.blocked(node.output)
    first = 0
    for name in node.inputs:
        channels = state.shape(name)[1]
        written = state.is_slice(name) and state.blocked(name).buffer == target.buffer
        if not written:
            n, _, h, w = target.image
            target_shape = replace(target, shape=(n, channels, h, w))
            state.move(state.blocked(name), target_shape, node.name, start=(0, 0, 0, first), pad_lanes=False)
        first += channels


def _concat_rows(state: KernelLowering, node: KernelNode) -> None:
    target, first = state.result(node.output), 0
    for name in node.inputs:
        count = state.shape(name)[2]
        state.move(state.blocked(name), target.rows(first, count), node.name)
        first += count


def pad(state: KernelLowering, node: KernelNode) -> None:
    """Lower a Pad of height and width with a constant."""
    pads = [int(p) for p in state.constant(node.inputs[1])]
    if node.attrs.get("mode", b"constant") != b"constant":
        raise UnableError(f"pads of mode {node.attrs['mode'].decode()} are not computed")
    axes = [int(a) % 4 for a in state.constant(node.inputs[3])] if len(node.inputs) > 3 and node.inputs[3] else [0, 1, 2, 3]
    before, after = dict(zip(axes, pads, strict=False)), dict(zip(axes, pads[len(axes) :], strict=False))
    if len(state.shape(node.output)) != 4 or any(before.get(a) or after.get(a) for a in (0, 1)):
        raise UnableError("pads of height and width only are computed")
    value = state.constant(node.inputs[2]).item() if len(node.inputs) > 2 and node.inputs[2] else 0.0
    source, target = state.blocked(node.inputs[0]), state.result(node.output)
    state.move(source, target, node.name, start=(0, before.get(2, 0), before.get(3, 0), 0), fill=float(value))


def resize(state: KernelLowering, node: KernelNode) -> None:
    """Lower a Resize to the nearest neighbour by whole factors."""
    scales = [float(s) for s in state.constant(node.inputs[2])] if len(node.inputs) > 2 and node.inputs[2] else []
    mode = (node.attrs.get("mode", b"nearest"), node.attrs.get("coordinate_transformation_mode"), node.attrs.get("nearest_mode"))
    is_integer = len(scales) == 4 and scales[:2] == [1, 1] and all(s >= 1 and s == int(s) for s in scales)
    if not is_integer or mode != (b"nearest", b"asymmetric", b"floor"):
        raise UnableError("images are enlarged by whole factors and nearest neighbours only")
    source, target = state.blocked(node.inputs[0]), state.result(node.output)
    state.move(source, target, node.name, scale=(int(scales[2]), int(scales[3]), 1, 1))


def shuffle(state: KernelLowering, node: KernelNode) -> None:
    """Lower a channel shuffle, which takes the channels of all groups in turn."""
    groups = int(node.attrs["groups"])
    source, target = state.blocked(node.inputs[0]), state.result(node.output)
    state.move(source, target, node.name, scale=(1, 1, groups, source.image[1] // groups))


def slice_(state: KernelLowering, node: KernelNode) -> None:
    """Lower a slice of channels, a view if it starts at a block and else a copy; or of rows, a view."""
    starts, ends = state.constant(node.inputs[1]), state.constant(node.inputs[2])
    shape = state.shape(node.inputs[0])
    axes = (
        [int(a) % len(shape) for a in state.constant(node.inputs[3])]
        if len(node.inputs) > 3 and node.inputs[3]
        else list(range(len(starts)))
    )
    steps = state.constant(node.inputs[4]) if len(node.inputs) > 4 and node.inputs[4] else np.ones(len(starts))
    if axes not in ([1], [2]) or steps[0] != 1 or (len(shape) != 4 and (axes, len(shape)) != ([1], 2)) or len(ends) != 1:
        raise UnableError("slices of channels or rows only are computed")
    first = int(starts[0]) if starts[0] >= 0 else shape[axes[0]] + int(starts[0])
    count = state.shape(node.output)[axes[0]]
    source = state.blocked(node.inputs[0])
    if axes == [2]:
        state.alias(node.output, source.rows(first, count))
    elif first % source.lanes == 0:
        state.alias(node.output, source.channels(first, count))
    else:
        state.move(source, state.result(node.output), node.name, start=(first, 0, 0, 0))


def pool(state: KernelLowering, node: KernelNode) -> None:
    """Lower a MaxPool or AveragePool of images."""
    if len(state.shape(node.inputs[0])) != 4:
        raise UnableError("windows over images only are pooled")
    x, y = state.blocked(node.inputs[0]), state.result(node.output)
    n, c, h, w = x.image
    _, _, oh, ow = y.image
    kernel = tuple(node.attrs["kernel_shape"])
    stride = tuple(node.attrs.get("strides", (1, 1)))
    dilation = tuple(node.attrs.get("dilations", (1, 1)))
    top, left, bottom, right = node.attrs.get("pads", (0, 0, 0, 0))
    largest = node.op == "MaxPool"
    counts = int(not largest and bool(node.attrs.get("count_include_pad", 0)))
    if not largest and dilation != (1, 1):
        raise UnableError("averages of dilated windows are not computed")
    blocks = state.blocking.blocks(c)
    grid_macros, grid, local = light_grid(state.traits, blocks, oh * ow, n)
    arguments = (
        TensorArgument(x),
        TensorArgument(y, written=True),
        (h, w, blocks, 0),
        (oh, ow, 0, 0),
        (*kernel, *stride),
        (top, left, *dilation),
        (bottom, right, counts, 0),
    )
    shape = f"{describe(node, x.shape)} k{kernel[0]}x{kernel[1]} s{stride[0]}x{stride[1]}"
    state.add(Launch("pool", node.name, defines(LARGEST=largest, **grid_macros), arguments, grid, shape, local=local))


def global_pool(state: KernelLowering, node: KernelNode) -> None:
    """Lower a GlobalAveragePool or GlobalMaxPool of images."""
    if len(state.shape(node.inputs[0])) != 4:
        raise UnableError("images only are pooled")
    x, y = state.blocked(node.inputs[0]), state.result(node.output, allow_row_major=True)
    n, c, h, w = x.image
    blocks = state.blocking.blocks(c)
    # a CPU has enough blocks for its cores; on a GPU few blocks of many pixels each would leave most of it idle
    group = 1 if state.traits.cpu else 1 << (min(128, state.traits.max_local, state.traits.max_sizes[0]).bit_length() - 1)
    macros = defines(LARGEST=node.op == "GlobalMaxPool", YPLAIN=y.is_row_major, GROUP=group, WIDE=min(group, 32, 1 << (w - 1).bit_length()))
    arguments = (TensorArgument(x), TensorArgument(y, written=True), (h, w, blocks, c))
    local = (CPU_LIGHT[0] if state.traits.cpu else group, 1)
    state.add(Launch("global_pool", node.name, macros, arguments, (blocks * group, n), describe(node, x.shape), local=local))


def _add_lines(
    state: KernelLowering,
    node: KernelNode,
    items: int,
    before: tuple[Argument, ...],
    after: tuple[Argument, ...],
    kernel: str,
    macros: Defines = (),
) -> None:
    """Add a launch with one work-item per line and row-major tensors; other arguments come before and after the written one."""
    x, y = state.row_major(node.inputs[0]), state.row_major_result(node.output)
    arguments = (TensorArgument(x, without_strides=True), *before, TensorArgument(y, written=True, without_strides=True), *after)
    description = describe(node, state.shape(node.inputs[0]))
    state.add(Launch(kernel, node.name, macros, arguments, (items,), description, local=line_local(state.traits)))


def softmax(state: KernelLowering, node: KernelNode) -> None:
    """Lower a Softmax or LogSoftmax along any one dimension."""
    shape = state.shape(node.output)
    axis = int(node.attrs.get("axis", -1)) % len(shape)
    outer, inner = prod(shape[:axis]), prod(shape[axis + 1 :])
    sizes = (outer, shape[axis], inner, 0)
    _add_lines(state, node, outer * inner, (), (sizes,), "softmax", defines(LOGARITHM=node.op == "LogSoftmax"))


def layer_norm(state: KernelLowering, node: KernelNode) -> None:
    """Lower a LayerNormalization of the last dimensions."""
    shape = state.shape(node.inputs[0])
    axis = int(node.attrs.get("axis", -1)) % len(shape)
    lines, length = prod(shape[:axis]), prod(shape[axis:])
    constants = state.constant(node.inputs[1]), state.constant(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else np.zeros(1)
    weights = tuple(Weights(as_float(np.broadcast_to(values, shape[axis:]).reshape(-1)), "float") for values in constants)
    sizes = (lines, length, 0, 0), float(node.attrs.get("epsilon", 1e-5))
    _add_lines(state, node, lines, weights, sizes, "layer_norm")


def reduce_mean(state: KernelLowering, node: KernelNode) -> None:
    """Lower a ReduceMean of a tensor of rank up to 4."""
    shape = state.shape(node.inputs[0])
    axes = [int(a) % len(shape) for a in state.constant(node.inputs[1])] if len(node.inputs) > 1 and node.inputs[1] else []
    if not axes and not node.attrs.get("noop_with_empty_axes", 0):
        axes = list(range(len(shape)))
    if len(shape) > 4:
        raise UnableError(f"the tensor has rank {len(shape)}, up to 4 are computed")
    full = (1,) * (4 - len(shape)) + shape
    reduced_axes = {a + 4 - len(shape) for a in axes}
    kept_sizes = tuple(1 if i in reduced_axes else size for i, size in enumerate(full))
    reduced = tuple(size if i in reduced_axes else 1 for i, size in enumerate(full))
    _add_lines(state, node, prod(kept_sizes), (), (kept_sizes, reduced, strides(full)), "reduce_mean")


def transpose(state: KernelLowering, node: KernelNode) -> None:
    """Transpose a tensor of rank up to 6."""
    shape = state.shape(node.inputs[0])
    if len(shape) > 6:
        raise UnableError(f"the tensor has rank {len(shape)}, up to 6 are computed")
    order = [int(a) for a in node.attrs.get("perm", reversed(range(len(shape))))]
    sizes = [shape[a] for a in reversed(order)] + [1] * (8 - len(shape))
    steps = [strides(shape)[a] for a in reversed(order)] + [0] * (8 - len(shape))
    _add_lines(state, node, prod(shape), (), (tuple(sizes), tuple(steps)), "transpose")


def matmul(state: KernelLowering, node: KernelNode) -> None:
    """Lower a MatMul with a constant matrix."""
    weight = as_float(state.constant(node.inputs[1]))
    shape = state.shape(node.inputs[0])
    if weight.ndim != 2 or len(shape) < 2:
        raise UnableError("products with a constant matrix only are computed")
    length, columns = weight.shape
    lanes = state.blocking.lanes
    width = -(-columns // lanes) * lanes
    padded = np.zeros((length, width), np.float32)
    padded[:, :columns] = weight
    rows = prod(shape[:-1])
    x, y = state.row_major(node.inputs[0]), state.row_major_result(node.output)
    arguments = (
        TensorArgument(x, without_strides=True),
        Weights(padded, "float"),
        Weights(np.zeros(width, np.float32), "float"),
        TensorArgument(y, written=True, without_strides=True),
        (rows, length, columns, 0),
    )
    grid = (width // lanes, rows)
    local = (1, 1) if state.traits.cpu else (min(32, state.traits.max_local), 1)
    state.add(
        Launch("matmul", node.name, (), arguments, grid, describe(node, shape, weight.shape), macs=rows * length * columns, local=local)
    )


Template = Callable[[KernelLowering, KernelNode], None]

TEMPLATES: dict[str, Template] = {
    "AveragePool": pool,
    "Binary": binary,
    "ChannelShuffle": shuffle,
    "Concat": concat,
    "Conv": convolution,
    "Flatten": reshape,
    "Gemm": linear,
    "GlobalAveragePool": global_pool,
    "GlobalMaxPool": global_pool,
    "Identity": identity,
    "LayerNormalization": layer_norm,
    "LogSoftmax": softmax,
    "MatMul": matmul,
    "MaxPool": pool,
    "Pad": pad,
    "ReduceMean": reduce_mean,
    "Reshape": reshape,
    "Resize": resize,
    "ScaleShift": scale_shift,
    "Slice": slice_,
    "Softmax": softmax,
    "Squeeze": reshape,
    "Transpose": transpose,
    "Unary": unary,
    "Unsqueeze": reshape,
}


def add_template(op: str, template: Template, kernels: Path) -> None:
    """Add the template of an operator from outside this package, with the folder of its kernels."""
    TEMPLATES[op] = template
    if kernels not in FOLDERS:
        FOLDERS.append(kernels)


def lower(graph: KernelGraph, blocking: Blocking, traits: Traits, options: Options, schedules: Schedules) -> list[Launch]:
    """Return the launches that compute a simplified and fused graph, in order."""
    state = KernelLowering(graph, blocking, traits, options, schedules)
    for node in graph.nodes:
        template = TEMPLATES.get(node.op)
        if template is None:
            raise UnableError(f"node `{node.name}` is a {node.op}, for which the opencl delegate has no kernel")
        before = len(state.launches)
        try:
            template(state, node)
        except UnableError as error:
            if error.message.startswith("node "):
                raise
            raise UnableError(f"node `{node.name}` ({node.op}): {error.message}") from error
        for i in range(before, len(state.launches)):
            state.launches[i] = replace(state.launches[i], merged=node.merged)
    for name in graph.outputs:
        _finish(state, name)
    return state.launches


def refusals(graph: KernelGraph, blocking: Blocking, traits: Traits, options: Options, schedules: Schedules) -> dict[str, str]:
    """Return the nodes that no kernel computes, by name, with the reason; later nodes are checked as if the result existed."""
    state = KernelLowering(graph, blocking, traits, options, schedules)
    reasons: dict[str, str] = {}
    for node in graph.nodes:
        template = TEMPLATES.get(node.op)
        try:
            if template is not None:
                template(state, node)
                continue
            reasons[node.name] = f"the opencl delegate has no kernel for {node.op}"
        except UnableError as error:
            reasons[node.name] = error.message
        state.alias(node.output, row_major_view(node.output, state.shape(node.output), "input"))
    return reasons


def _finish(state: KernelLowering, name: str) -> None:
    """Add the launch, if needed, that brings an output into the caller's memory in row-major order."""
    target = row_major_view(name, state.shape(name), "output")
    source = state.existing_row_major(name)
    if source == target:
        return
    if source is not None and state.is_row_major_only(name):
        count = prod(source.shape)
        state.move(replace(row_major_view(source.buffer, (1, count), source.owner)), row_major_view(name, (1, count), "output"), name)
    else:
        state.move(state.blocked(name), target, name)
