"""Operators that work element by element."""

from dataclasses import replace
from math import prod

import numpy as np

from scheduler.delegates.base import Array
from scheduler.delegates.opencl.fuse import NONE
from scheduler.delegates.opencl.graph import KernelNode
from scheduler.delegates.opencl.launch import Argument, Ints, Launch, TensorArgument
from scheduler.delegates.opencl.lowering import KernelLowering, UnsupportedError
from scheduler.delegates.opencl.templates.parts import activation, activation_arguments, defines, describe, light_grid
from scheduler.delegates.opencl.tensors import Blocking, TensorView, image_shape


def unary(state: KernelLowering, node: KernelNode) -> None:
    """An activation that no other kernel could take."""
    x = _input(state, node.inputs[0])
    _launch(state, node, x, None, "first")


def binary(state: KernelLowering, node: KernelNode) -> None:
    """Addition, product or PReLU of two tensors, one of which may be constant or repeated along dimensions."""
    shape = state.shape(node.output)
    names = list(node.inputs)
    if names[0] in state.graph.constants and node.attrs["function"] != "prelu":
        names.reverse()
    x, z = (_operand(state, name, shape) for name in names)
    _launch(state, node, x, z, node.attrs["function"])


def scale_shift(state: KernelLowering, node: KernelNode) -> None:
    """A batch-norm that follows no convolution: one factor and one offset a channel."""
    shape = state.shape(node.output)
    if len(shape) not in (2, 4):
        raise UnsupportedError(f"the tensor has rank {len(shape)}, 2 or 4 are computed")
    per_channel = (-1, *[1] * (len(shape) - 2))
    scale = constant_operand(state, f"{node.name}.scale", state.constant(node.inputs[1]).reshape(per_channel), shape)
    shift = constant_operand(state, f"{node.name}.shift", state.constant(node.inputs[2]).reshape(per_channel), shape)
    x = _input(state, node.inputs[0])
    middle = state.blocking.blocked(f"{node.output}:scaled", shape)
    first = replace(node, attrs={**node.attrs, "activation": NONE})
    _launch(state, first, x, scale, "mul", middle)
    _launch(state, node, TensorArgument(middle), shift, "add")


def _input(state: KernelLowering, name: str) -> TensorArgument:
    """A tensor in blocks; one of another rank is taken as a line of channels where nothing else reads its blocking."""
    return TensorArgument(state.blocked(name))


def _operand(state: KernelLowering, name: str, shape: tuple[int, ...]) -> TensorArgument:
    if name in state.graph.constants:
        return constant_operand(state, name, state.graph.constants[name], shape)
    if len(state.shape(name)) != len(shape):
        raise UnsupportedError(f"`{name}` has rank {len(state.shape(name))}, the result {len(shape)}")
    return TensorArgument(_repeated(state.blocked(name), shape))


def constant_operand(state: KernelLowering, name: str, values: Array, shape: tuple[int, ...]) -> TensorArgument:
    """A constant, brought to the rank of the result and into blocks."""
    if values.ndim > len(shape):
        raise UnsupportedError(f"the constant `{name}` has a higher rank than the result")
    operand_shape = image_shape((1,) * (len(shape) - values.ndim) + values.shape)
    packed = to_blocks(np.asarray(values, np.float32).reshape(operand_shape), state.blocking)
    view = replace(state.blocking.blocked(f"{name}:constant", operand_shape), where="constant")
    return TensorArgument(_repeated(view, image_shape(shape)), values=packed)


def to_blocks(values: Array, blocking: Blocking) -> Array:
    """An N×C×H×W array as a blocked tensor lies in memory, lanes behind the last channel zero."""
    n, c, h, w = values.shape
    blocks = blocking.blocks(c)
    padded = np.zeros((n, blocks * blocking.lanes, h, w), np.float32)
    padded[:, :c] = values
    split = padded.reshape(n, blocks, blocking.lanes, h, w)
    return np.ascontiguousarray(split.transpose((0, 3, 4, 1, 2) if blocking.blocks_inside else (0, 1, 3, 4, 2)))


def _repeated(view: TensorView, shape: tuple[int, ...]) -> TensorView:
    """A view whose strides repeat what has size 1 where the result has more."""
    strides = tuple(
        0 if size == 1 and wanted > 1 else stride for size, wanted, stride in zip(view.image, image_shape(shape), view.strides, strict=True)
    )
    n, b, h, w = strides
    return replace(view, strides=(n, b, h, w))


def _launch(
    state: KernelLowering, node: KernelNode, x: TensorArgument, z: TensorArgument | None, function: str, target: TensorView | None = None
) -> None:
    shape = state.shape(node.output)
    if len(shape) not in (2, 4):
        raise UnsupportedError(f"the tensor has rank {len(shape)}, 2 or 4 are computed")
    n, c, h, w = image_shape(shape)
    act = activation(node)
    y = target or state.result(node.output)
    more, grid, local = light_grid(state.traits, state.blocking.blocks(c), h * w, n)
    splat = [int(t is not None and c > 1 and t.view.image[1] == 1) for t in (x, z)]
    macros = defines(ACT=act.macro, OP=f"OP_{function}", BINARY=z is not None, SPLAT_X=splat[0], SPLAT=splat[1], **more)
    operands: tuple[Argument, ...] = (x,) if z is None else (x, z)
    arguments = (*operands, TensorArgument(y, written=True), Ints((n, state.blocking.blocks(c), h, w)), *activation_arguments(act))
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
