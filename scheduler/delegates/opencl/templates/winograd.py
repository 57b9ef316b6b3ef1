"""Winograd's F(4×4, 3×3): 36 multiplications where a direct convolution needs 144.

Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2016),
equations 12 and 13: Y = Aᵀ[(G g Gᵀ) ⊙ (Bᵀ d B)]A, the products for all tiles
and channels being 36 matrix products.
"""

from dataclasses import dataclass

import numpy as np

from scheduler.delegates.base import Array
from scheduler.delegates.opencl.launch import Ints, Launch, Size, TensorArgument, Weights, Zeros
from scheduler.delegates.opencl.lowering import KernelLowering
from scheduler.delegates.opencl.schedule import KernelProblem, least_cycles, rank_tiles
from scheduler.delegates.opencl.templates.packing import pack_dense
from scheduler.delegates.opencl.templates.parts import (
    CPU_LIGHT,
    activation_arguments,
    defines,
    fit_local,
    image_power,
    reads_image,
    reads_vectors,
    switches,
)
from scheduler.delegates.opencl.templates.window import Convolution, pad_to
from scheduler.delegates.opencl.tensors import TensorView

#: Output pixels of a tile in each direction, and what it reads.
TILE, SPAN = 4, 6
POINTS = SPAN * SPAN

#: Time of the transform of one tile of one block of channels, measured on a Zen 4.
TRANSFORM_CYCLES = 300
#: Part of the direct convolution's time below which the estimate is trusted.
WORTH = 0.9

#: G of F(4×4, 3×3) with interpolation points 0, ±1, ±2, ∞.
G = np.array(
    [[1 / 4, 0, 0], [-1 / 6, -1 / 6, -1 / 6], [-1 / 6, 1 / 6, -1 / 6], [1 / 24, 1 / 12, 1 / 6], [1 / 24, -1 / 12, 1 / 6], [0, 0, 1]]
)


def suits(state: KernelLowering, conv: Convolution) -> bool:
    """Whether it is a 3×3 convolution with stride 1 for which Winograd's algorithm is asked for or estimated to be quicker."""
    switch = state.options.winograd
    legal = conv.kernel == (3, 3) and conv.stride == conv.dilation == (1, 1) and conv.groups == 1
    if not legal or switch == "off" or state.blocking.half:
        return False
    if switch == "on":
        return True
    tuned = state.schedules.tuned.get(("winograd", conv.shape))
    return bool(tuned["USE"]) if tuned is not None else worth_it(state, conv)


def worth_it(state: KernelLowering, conv: Convolution) -> bool:
    """Whether fewer multiplications outweigh the transforms, 36 weights for 9, and the pixels that tiles add at the border."""
    reads, writes = state.blocking.blocks(conv.input[1]), state.blocking.blocks(conv.output[1])
    depth = reads * state.blocking.lanes
    tiles = conv.output[0] * -(-conv.output[2] // TILE) * -(-conv.output[3] // TILE)
    direct = least_cycles(state.schedules, KernelProblem("conv", conv.shape, conv.pixels, writes, 9 * depth))
    product = least_cycles(state.schedules, KernelProblem("product", conv.shape, tiles, writes, depth, POINTS))
    return product + TRANSFORM_CYCLES * tiles * (reads + writes) < WORTH * direct


def transform_weights(weight: Array) -> Array:
    """G g Gᵀ of each 3×3 window: M×C×3×3 to 36×M×C."""
    u = np.einsum("ak,mckl,bl->abmc", G, weight.astype(np.float64), G)
    return np.asarray(u.reshape(POINTS, *weight.shape[:2]), np.float32)


@dataclass(frozen=True)
class Tiles:
    """Sizes of a convolution in tiles of 4×4 outputs."""

    down: int  # Rows of tiles.
    across: int  # Columns of tiles.
    count: int  # Tiles of all images.
    reads: int  # Blocks of input channels.
    writes: int  # Blocks of output channels.
    points: TensorView  # The input's 36 transformed points of every tile.
    products: TensorView  # The 36 sums of every tile, before they are transformed back.


def winograd(state: KernelLowering, conv: Convolution) -> None:
    """Transform of the input, 36 products, transform of the output with bias, addition and activation."""
    n, c, _, _ = conv.input
    _, m, oh, ow = conv.output
    down, across = -(-oh // TILE), -(-ow // TILE)
    count, name = n * down * across, conv.node.output
    reads, writes = state.blocking.blocks(c), state.blocking.blocks(m)
    points = _matrices(state, f"{name}:points", count, c)
    tiles = Tiles(down, across, count, reads, writes, points, _matrices(state, f"{name}:products", count, m))
    _transform_input(state, conv, tiles)
    _multiply(state, conv, tiles)
    _transform_output(state, conv, tiles)


def _matrices(state: KernelLowering, name: str, tiles: int, channels: int) -> TensorView:
    """Memory of 36 matrices: a row of channels in blocks for each tile."""
    lanes, blocks = state.blocking.lanes, state.blocking.blocks(channels)
    row = blocks * lanes
    return TensorView(name, (POINTS * tiles, channels), 0, (row, lanes, row, row), lanes, POINTS * tiles * row * 4)


def _light(state: KernelLowering, grid: Size) -> Size | None:
    return CPU_LIGHT if state.traits.cpu else fit_local(state.traits, grid)


def _transform_input(state: KernelLowering, conv: Convolution, tiles: Tiles) -> None:
    _, _, h, w = conv.input
    arguments = (
        TensorArgument(state.blocked(conv.x)),
        Zeros(state.blocking.lanes),
        TensorArgument(tiles.points, written=True),
        Ints((h, w, tiles.reads, 0)),
        Ints((tiles.down, tiles.across, tiles.count, 0)),
        Ints(conv.pads[:2]),
    )
    grid = (tiles.reads, tiles.count, 1)
    state.add(Launch("winograd_in", conv.node.name, defines(), arguments, grid, f"{conv.shape} input", local=_light(state, grid)))


def _multiply(state: KernelLowering, conv: Convolution, tiles: Tiles) -> None:
    """The 36 products of all tiles' points with the transformed weights, as one launch of the direct kernel."""
    lanes, c, m = state.blocking.lanes, conv.input[1], conv.output[1]
    problem = KernelProblem("product", f"{POINTS}x{tiles.count}x{c}x{m}", tiles.count, tiles.writes, tiles.reads * lanes, POINTS)
    tile = state.schedules.parameters(problem, rank_tiles(state.schedules, problem))
    vw, vc = tile["VW"], tile["VC"]
    matrices = np.stack([pack_dense(u.reshape(m, c, 1, 1), lanes, vc, blocked_input=True) for u in transform_weights(conv.weight)])
    counts = -(-tiles.count // vw), -(-tiles.writes // vc)
    power, as_image = image_power(state, matrices), reads_image(state, tiles.points)
    fixed = dict.fromkeys(("RESIDUAL", "RESIDUAL_LAST", "GROUPED", "XPLAIN", "YPLAIN", "CHECKED"), 0)
    fixed |= dict.fromkeys(("BATCHED", "SPLIT", "GROUP", "FLAT"), 1)
    macros = defines(**tile, **switches(state), **fixed, WIMAGE=power, XIMAGE=as_image, ACT="act_none", XVEC=reads_vectors(state))
    arguments = (
        TensorArgument(tiles.points, image=as_image),
        Zeros(lanes),
        Weights(matrices, image=power),
        Weights(np.zeros(lanes, np.float32), "float"),
        TensorArgument(tiles.products, written=True),
        Ints((1, 1, tiles.reads, c)),
        Ints((1, 1, tiles.writes, m)),
        Ints((1, 1, 1, 1)),
        Ints((0, 0, 1, 1)),
        Ints(counts),
        Ints((tiles.count * tiles.reads * lanes, int(matrices[0].size), tiles.count * tiles.writes * lanes, tiles.count)),
        *activation_arguments(type(conv.activation)()),
    )
    over = (counts[1], counts[0], POINTS) if tile["CHANNELS_FIRST"] else (*counts, POINTS)
    local = fit_local(state.traits, over, tile["CHANNELS_FIRST"])
    state.add(Launch("conv", conv.node.name, macros, arguments, over, problem.shape, POINTS * tiles.count * c * m, local))


def _transform_output(state: KernelLowering, conv: Convolution, tiles: Tiles) -> None:
    _, _, oh, ow = conv.output
    residual = conv.residual_argument(state)
    arguments = (
        TensorArgument(tiles.products),
        Weights(pad_to(conv.bias, tiles.writes * state.blocking.lanes), "float"),
        *residual,
        TensorArgument(state.result(conv.node.output), written=True),
        Ints((oh, ow, tiles.writes, 0)),
        Ints((tiles.down, tiles.across, tiles.count, 0)),
        *activation_arguments(conv.activation),
    )
    macros = defines(ACT=conv.activation.macro, RESIDUAL=len(residual), RESIDUAL_LAST=conv.residual_last)
    grid = (tiles.writes, tiles.count, 1)
    # the work-group of the input's transform, whose grid differs in the first dimension alone
    local = _light(state, (tiles.reads, tiles.count, 1))
    state.add(Launch("winograd_out", conv.node.name, macros, arguments, grid, f"{conv.shape} output", local=local))
