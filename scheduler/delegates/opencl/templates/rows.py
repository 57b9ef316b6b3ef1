"""Operators on plain tensors, line by line: softmax, layer-norm, means, transposition, matrix products."""

from math import prod

import numpy as np

from scheduler.delegates.opencl.graph import KernelNode
from scheduler.delegates.opencl.launch import Float, Ints, Launch, TensorArgument, Weights
from scheduler.delegates.opencl.lowering import KernelLowering, UnsupportedError, as_float
from scheduler.delegates.opencl.templates.parts import defines, describe, line_local, strides


def softmax(state: KernelLowering, node: KernelNode) -> None:
    """Softmax and LogSoftmax along any one dimension."""
    shape = state.shape(node.output)
    axis = int(node.attrs.get("axis", -1)) % len(shape)
    x, y = state.plain(node.inputs[0]), state.plain_result(node.output)
    outside, inside = prod(shape[:axis]), prod(shape[axis + 1 :])
    arguments = (TensorArgument(x, bare=True), TensorArgument(y, written=True, bare=True), Ints((outside, shape[axis], inside, 0)))
    macros = defines(LOGARITHM=node.op == "LogSoftmax")
    state.add(Launch("softmax", node.name, macros, arguments, (outside * inside,), describe(node, shape), local=line_local(state.traits)))


def layer_norm(state: KernelLowering, node: KernelNode) -> None:
    """LayerNormalization of the last dimensions."""
    shape = state.shape(node.inputs[0])
    axis = int(node.attrs.get("axis", -1)) % len(shape)
    lines, length = prod(shape[:axis]), prod(shape[axis:])
    scale = np.broadcast_to(state.constant(node.inputs[1]), shape[axis:]).reshape(-1)
    shift = state.constant(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else np.zeros(1)
    x, y = state.plain(node.inputs[0]), state.plain_result(node.output)
    arguments = (
        TensorArgument(x, bare=True),
        Weights(as_float(scale), "float"),
        Weights(as_float(np.broadcast_to(shift, shape[axis:]).reshape(-1)), "float"),
        TensorArgument(y, written=True, bare=True),
        Ints((lines, length, 0, 0)),
        Float(float(node.attrs.get("epsilon", 1e-5))),
    )
    state.add(Launch("layer_norm", node.name, (), arguments, (lines,), describe(node, shape), local=line_local(state.traits)))


def reduce_mean(state: KernelLowering, node: KernelNode) -> None:
    """ReduceMean of tensors of rank up to 4."""
    shape = state.shape(node.inputs[0])
    axes = [int(a) % len(shape) for a in state.constant(node.inputs[1])] if len(node.inputs) > 1 and node.inputs[1] else []
    if not axes and not node.attrs.get("noop_with_empty_axes", 0):
        axes = list(range(len(shape)))
    if len(shape) > 4:
        raise UnsupportedError(f"the tensor has rank {len(shape)}, up to 4 are computed")
    full = (1,) * (4 - len(shape)) + shape
    chosen = {a + 4 - len(shape) for a in axes}
    kept = tuple(1 if i in chosen else size for i, size in enumerate(full))
    reduced = tuple(size if i in chosen else 1 for i, size in enumerate(full))
    x, y = state.plain(node.inputs[0]), state.plain_result(node.output)
    arguments = (TensorArgument(x, bare=True), TensorArgument(y, written=True, bare=True), Ints(kept), Ints(reduced), Ints(strides(full)))
    state.add(Launch("reduce_mean", node.name, (), arguments, (prod(kept),), describe(node, shape), local=line_local(state.traits)))


def transpose(state: KernelLowering, node: KernelNode) -> None:
    """Transpose of tensors of rank up to 6."""
    shape = state.shape(node.inputs[0])
    if len(shape) > 6:
        raise UnsupportedError(f"the tensor has rank {len(shape)}, up to 6 are computed")
    order = [int(a) for a in node.attrs.get("perm", reversed(range(len(shape))))]
    input_strides = strides(shape)
    sizes = [shape[a] for a in reversed(order)] + [1] * (8 - len(shape))
    steps = [input_strides[a] for a in reversed(order)] + [0] * (8 - len(shape))
    x, y = state.plain(node.inputs[0]), state.plain_result(node.output)
    arguments = (TensorArgument(x, bare=True), TensorArgument(y, written=True, bare=True), Ints(tuple(sizes)), Ints(tuple(steps)))
    state.add(Launch("transpose", node.name, (), arguments, (prod(shape),), describe(node, shape), local=line_local(state.traits)))


def matmul(state: KernelLowering, node: KernelNode) -> None:
    """MatMul with a constant matrix."""
    weight = as_float(state.constant(node.inputs[1]))
    shape = state.shape(node.inputs[0])
    if weight.ndim != 2 or len(shape) < 2:
        raise UnsupportedError("products with a constant matrix only are computed")
    length, columns = weight.shape
    lanes = state.blocking.lanes
    width = -(-columns // lanes) * lanes
    padded = np.zeros((length, width), np.float32)
    padded[:, :columns] = weight
    rows = prod(shape[:-1])
    x, y = state.plain(node.inputs[0]), state.plain_result(node.output)
    arguments = (
        TensorArgument(x, bare=True),
        Weights(padded, "float"),
        Weights(np.zeros(width, np.float32), "float"),
        TensorArgument(y, written=True, bare=True),
        Ints((rows, length, columns, 0)),
    )
    grid = (width // lanes, rows)
    local = (1, 1) if state.traits.cpu else (min(32, state.traits.max_local), 1)
    state.add(
        Launch("matmul", node.name, (), arguments, grid, describe(node, shape, weight.shape), macs=rows * length * columns, local=local)
    )
