"""Convolutions and fully connected layers: which kernel, which tile, which arguments."""

from dataclasses import replace

import numpy as np

from scheduler.delegates.base import Array
from scheduler.delegates.opencl.graph import KernelNode
from scheduler.delegates.opencl.launch import Argument, Ints, Launch, Size, TensorArgument, Weights, Zeros
from scheduler.delegates.opencl.lowering import KernelLowering, UnsupportedError, as_float
from scheduler.delegates.opencl.schedule import GPU_WORK_ITEMS, TILE_BLOCKS, KernelProblem, Parameters, rank_tiles
from scheduler.delegates.opencl.templates import depthwise, stem, winograd
from scheduler.delegates.opencl.templates.move import move_launch
from scheduler.delegates.opencl.templates.packing import input_blocks, pack_dense, pack_grouped
from scheduler.delegates.opencl.templates.parts import (
    activation,
    activation_arguments,
    defines,
    fit_local,
    image_power,
    reads_image,
    reads_vectors,
    switches,
)
from scheduler.delegates.opencl.templates.window import Convolution, pad_to, read_bias, read_convolution
from scheduler.delegates.opencl.tensors import TensorView

#: Most work-items that share one tile.
MAX_SPLIT = 16
#: Largest input that is read channel by channel from NCHW; more channels are brought into blocks first.
PLAIN_CHANNELS = 4


def convolution(state: KernelLowering, node: KernelNode) -> None:
    """Conv of images, by the kernel that suits its shape."""
    conv = read_convolution(state, node)
    if state.options.borders == "pad" and any(conv.pads):
        conv = padded(state, conv)
    if depthwise.suits(conv):
        depthwise.depthwise(state, conv)
    elif stem.suits(state, conv):
        stem.stem(state, conv)
    elif winograd.suits(state, conv):
        winograd.winograd(state, conv)
    else:
        direct(state, conv)


def padded(state: KernelLowering, conv: Convolution) -> Convolution:
    """The convolution of a padded copy of its input, which needs no pads."""
    n, c, h, w = conv.input
    top, left, bottom, right = conv.pads
    name, shape = f"{conv.node.name}:padded", (n, c, h + top + bottom, w + left + right)
    state.graph.shapes[name] = shape
    view = state.blocking.blocked(name, shape)
    state.add(move_launch(state, state.blocked(conv.x), view, conv.node.name, start=(0, top, left, 0)))
    state.alias(name, view)
    return replace(conv, x=name, input=shape, pads=(0, 0, 0, 0))


def direct(state: KernelLowering, conv: Convolution) -> None:
    """Any convolution, as a matrix product over gathered pixels."""
    lanes = state.blocking.lanes
    _, c, h, w = conv.input
    _, m, oh, ow = conv.output
    blocks = state.blocking.blocks(m)
    from_plain = state.is_plain(conv.x) and c <= PLAIN_CHANNELS and conv.groups == 1
    x = state.plain(conv.x) if from_plain else state.blocked(conv.x)
    depth = conv.weight[0].size if from_plain else conv.kernel[0] * conv.kernel[1] * -(-conv.weight.shape[1] // lanes) * lanes
    problem = KernelProblem("conv", conv.shape, conv.pixels, blocks, depth, depths=grouped_depths(conv, lanes))
    tile = state.schedules.parameters(problem, candidates(state, problem))
    vw, vc = tile["VW"], tile["VC"]
    weight, reads, first = _packed(state, conv, vc, from_plain)
    residual = conv.residual_argument(state)
    y = state.result(conv.node.output, may_be_plain=True)
    tiles = -(-conv.pixels // vw), -(-blocks // vc)
    grid, local = tile_grid(state, tile, tiles)
    split = 1 if from_plain else split_of(state, tiles[0] * tiles[1], reads, local)
    if split > 1:
        grid, local = (*grid[:2], split), (*local[:2], split)
    power, as_image = image_power(state, weight), reads_image(state, x)
    macros = defines(
        **tile,
        **switches(state),
        WIMAGE=power,
        XIMAGE=as_image,
        SPLIT=split,
        GROUP=local[0] * local[1],
        ACT=conv.activation.macro,
        RESIDUAL=len(residual),
        RESIDUAL_LAST=conv.residual_last,
        GROUPED=conv.groups > 1,
        XPLAIN=from_plain,
        YPLAIN=y.plain,
        XVEC=reads_vectors(state),
        BATCHED=0,
        CHECKED=any(conv.pads),
        FLAT=conv.kernel == conv.stride == (1, 1)
        and not any(conv.pads)
        and all(_even(t.view) for t in (TensorArgument(x), TensorArgument(y), *residual)),
    )
    arguments = (
        TensorArgument(x, image=as_image),
        Zeros(lanes if reads_vectors(state) else (reads - 1) * x.strides[1] + lanes),
        Weights(weight, image=power),
        Weights(pad_to(conv.bias, tiles[1] * vc * lanes), "float"),
        *residual,
        *first,
        TensorArgument(y, written=True),
        Ints((h, w, reads, c)),
        Ints((oh, ow, blocks, m)),
        Ints((*conv.kernel, *conv.stride)),
        Ints((*conv.pads[:2], *conv.dilation)),
        Ints(tiles),
        Ints((0, 0, 0, conv.pixels)),
        *activation_arguments(conv.activation),
    )
    state.add(Launch("conv", conv.node.name, macros, arguments, grid, conv.shape, conv.macs, local))


def _packed(state: KernelLowering, conv: Convolution, vc: int, from_plain: bool) -> tuple[Array, int, tuple[Argument, ...]]:
    """Weights as the kernel reads them, blocks (or channels) of input that a tile reads, and where a group's begin."""
    lanes, c = state.blocking.lanes, conv.input[1]
    if conv.groups > 1:
        weight, starts = pack_grouped(conv.weight, conv.groups, c, lanes, vc)
        return weight, weight.shape[3] // lanes, (Weights(starts, "int"),)
    return pack_dense(conv.weight, lanes, vc, blocked_input=not from_plain), c if from_plain else state.blocking.blocks(c), ()


def grouped_depths(conv: Convolution, lanes: int) -> dict[int, int]:
    """Multiply-accumulates of one output element by blocks of a tile: one that has parts of several groups reads them all."""
    if conv.groups == 1:
        return {}
    window = conv.kernel[0] * conv.kernel[1]
    reads = {vc: max(stop - start for start, stop in input_blocks(conv.weight, conv.groups, lanes, vc)) for vc in TILE_BLOCKS}
    return {vc: window * blocks * lanes for vc, blocks in reads.items()}


def split_of(state: KernelLowering, items: int, blocks: int, local: Size) -> int:
    """How many work-items share one tile: as many as fill a GPU, while each has channels left and the group is legal."""
    split = 1
    if state.traits.cpu:
        return split
    room = min(state.traits.max_local // (local[0] * local[1]), state.traits.max_sizes[2])
    while split < MAX_SPLIT and 2 * split <= room and items * split < GPU_WORK_ITEMS and blocks >= 4 * split:
        split *= 2
    return split


def _even(view: TensorView) -> bool:
    """Whether all pixels of all images lie at equal distances."""
    n, _, h, w = view.image
    image, _, row, column = view.strides
    return (h == 1 or row == w * column) and (n == 1 or image == h * w * column)


def candidates(state: KernelLowering, problem: KernelProblem) -> list[Parameters]:
    """Legal tiles, the best first; the one that paper 004 gives as its example where that is asked for.

    Computing with half takes registers for sums in floats and, of half the size, for those in half that join them.
    """
    ranked = rank_tiles(state.schedules, problem, lambda vw, vc: not state.native or 3 * vw * vc + vc + vw <= 2 * state.traits.registers)
    if state.options.schedule == "tvm":
        # VH 1, VW 4, VC 4: four neighbouring pixels and four channels, so a vector is no wider than that.
        example = [tile for tile in ranked if tile["VW"] == min(4, problem.pixels) and tile["VC"] == 1]
        return example or ranked
    return ranked


def tile_grid(state: KernelLowering, tile: Parameters, tiles: tuple[int, int], batch: int = 1) -> tuple[Size, Size]:
    """Grid and work-group of a kernel with one work-item a tile."""
    grid = (tiles[1], tiles[0], batch) if tile["CHANNELS_FIRST"] else (tiles[0], tiles[1], batch)
    return grid, fit_local(state.traits, grid, tile["CHANNELS_FIRST"])


def linear(state: KernelLowering, node: KernelNode) -> None:
    """Gemm with constant weights: a 1×1 convolution whose pixels are the rows."""
    if node.attrs.get("transA") or node.attrs.get("alpha", 1.0) != 1.0 or node.attrs.get("beta", 1.0) != 1.0:
        raise UnsupportedError("products with transA, alpha or beta are not computed")
    weight = as_float(state.constant(node.inputs[1]))
    weight = weight if node.attrs.get("transB") else np.ascontiguousarray(weight.T)
    m, c = weight.shape
    rows = state.shape(node.inputs[0])[0]
    conv = Convolution(
        node=node,
        x=node.inputs[0],
        weight=weight.reshape(m, c, 1, 1),
        bias=read_bias(state, node, m),
        residual=None,
        residual_last=False,
        activation=activation(node),
        input=(rows, c, 1, 1),
        output=(rows, m, 1, 1),
        stride=(1, 1),
        dilation=(1, 1),
        pads=(0, 0, 0, 0),
        groups=1,
    )
    direct(state, conv)
