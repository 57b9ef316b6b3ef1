"""Winograd's F(4×4, 3×3): 36 multiplications where a direct convolution needs 144.

Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2016),
equations 12 and 13: Y = Aᵀ[(G g Gᵀ) ⊙ (Bᵀ d B)]A, the products for all tiles
and channels being 36 matrix products.
"""

from dataclasses import dataclass

import numpy as np

from scheduler.delegates.base import Array
from scheduler.delegates.opencl.launch import Ints, Launch, Tensor, Weights, Zeros
from scheduler.delegates.opencl.lowering import Lowering
from scheduler.delegates.opencl.schedule import Problem, least_cycles, rank_tiles
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
from scheduler.delegates.opencl.tensors import View

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


def suits(state: Lowering, conv: Convolution) -> bool:
    """Whether it is a 3×3 convolution with stride 1 for which Winograd's algorithm is asked for or estimated to be quicker."""
    switch = state.options.winograd
    legal = conv.kernel == (3, 3) and conv.stride == conv.dilation == (1, 1) and conv.groups == 1
    if not legal or switch == "off" or state.layout.half:
        return False
    if switch == "on":
        return True
    tuned = state.schedules.tuned.get(("winograd", conv.shape))
    return bool(tuned["USE"]) if tuned is not None else worth_it(state, conv)


def worth_it(state: Lowering, conv: Convolution) -> bool:
    """Whether fewer multiplications outweigh the transforms, 36 weights for 9, and the pixels that tiles add at the border."""
    reads, writes = state.layout.blocks(conv.input[1]), state.layout.blocks(conv.output[1])
    depth = reads * state.layout.lanes
    tiles = conv.output[0] * -(-conv.output[2] // TILE) * -(-conv.output[3] // TILE)
    direct = least_cycles(state.schedules, Problem("conv", conv.shape, conv.pixels, writes, 9 * depth))
    product = least_cycles(state.schedules, Problem("product", conv.shape, tiles, writes, depth, POINTS))
    return product + TRANSFORM_CYCLES * tiles * (reads + writes) < WORTH * direct


def transform_weights(weight: Array) -> Array:
    """G g Gᵀ of each 3×3 window: M×C×3×3 to 36×M×C."""
    u = np.einsum("ak,mckl,bl->abmc", G, weight.astype(np.float64), G)
    return np.asarray(u.reshape(POINTS, *weight.shape[:2]), np.float32)


@dataclass(frozen=True)
class _Tiles:
    """The tiles of a convolution's output and the blocks of channels before and behind its products.

    Args:
        down: Tiles from top to bottom of an image.
        across: Tiles from left to right.
        count: Tiles of all images.
        reads: Blocks of input channels.
        writes: Blocks of output channels.
    """

    down: int
    across: int
    count: int
    reads: int
    writes: int

    @classmethod
    def of(cls, state: Lowering, conv: Convolution) -> "_Tiles":
        """Those of one convolution."""
        down, across = -(-conv.output[2] // TILE), -(-conv.output[3] // TILE)
        blocks = state.layout.blocks
        return cls(down, across, conv.input[0] * down * across, blocks(conv.input[1]), blocks(conv.output[1]))

    @property
    def grid(self) -> Ints:
        """As kernels read them."""
        return Ints((self.down, self.across, self.count, 0))

    def local(self, state: Lowering) -> tuple[int, ...] | None:
        """Work-group of the transforms."""
        return CPU_LIGHT if state.traits.cpu else fit_local(state.traits, (self.reads, self.count, 1))


def winograd(state: Lowering, conv: Convolution) -> None:
    """Transform of the input, 36 products, transform of the output with bias, addition and activation."""
    lanes, tiles = state.layout.lanes, _Tiles.of(state, conv)
    name = conv.node.output
    x = state.blocked(conv.x)
    v = _points(f"{name}:points", tiles.count, conv.input[1], tiles.reads, lanes)
    p = _points(f"{name}:products", tiles.count, conv.output[1], tiles.writes, lanes)
    size = Ints((*conv.input[2:], tiles.reads, 0))
    into = (Tensor(x), Zeros(lanes), Tensor(v, written=True), size, tiles.grid, Ints(conv.pads[:2]))
    over = (tiles.reads, tiles.count, 1)
    state.add(Launch("winograd_in", conv.node.name, defines(), into, over, f"{conv.shape} input", local=tiles.local(state)))
    _multiply(state, conv, tiles, v, p)
    _transform_output(state, conv, tiles, p)


def _points(name: str, tiles: int, channels: int, blocks: int, lanes: int) -> View:
    """Memory for 36 numbers of each tile and channel."""
    row = blocks * lanes
    return View(name, (POINTS * tiles, channels), 0, (row, lanes, row, row), lanes, POINTS * tiles * row * 4)


def _multiply(state: Lowering, conv: Convolution, tiles: _Tiles, v: View, p: View) -> None:
    """The 36 products of all tiles and channels, by the kernel of convolutions."""
    lanes, c, m = state.layout.lanes, conv.input[1], conv.output[1]
    problem = Problem("product", f"{POINTS}x{tiles.count}x{c}x{m}", tiles.count, tiles.writes, tiles.reads * lanes, POINTS)
    tile = state.schedules.choose(problem, rank_tiles(state.schedules, problem))
    vw, vc = tile["VW"], tile["VC"]
    matrices = np.stack([pack_dense(u.reshape(m, c, 1, 1), lanes, vc, blocked_input=True) for u in transform_weights(conv.weight)])
    counts = -(-tiles.count // vw), -(-tiles.writes // vc)
    power, as_image = image_power(state, matrices), reads_image(state, v)
    plain = {"RESIDUAL": 0, "RESIDUAL_LAST": 0, "GROUPED": 0, "XPLAIN": 0, "YPLAIN": 0, "SPLIT": 1, "GROUP": 1, "CHECKED": 0, "FLAT": 1}
    macros = defines(
        **tile, **switches(state), WIMAGE=power, XIMAGE=as_image, ACT="act_none", XVEC=reads_vectors(state), BATCHED=1, **plain
    )
    product = (
        Tensor(v, image=as_image),
        Zeros(lanes),
        Weights(matrices, image=power),
        Weights(np.zeros(lanes, np.float32), "float"),
        Tensor(p, written=True),
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
    state.add(Launch("conv", conv.node.name, macros, product, over, problem.shape, POINTS * tiles.count * c * m, local))


def _transform_output(state: Lowering, conv: Convolution, tiles: _Tiles, p: View) -> None:
    """From products to pixels, with bias, addition and activation."""
    residual = conv.residual_argument(state)
    y = state.result(conv.node.output)
    out = (
        Tensor(p),
        Weights(pad_to(conv.bias, tiles.writes * state.layout.lanes), "float"),
        *residual,
        Tensor(y, written=True),
        Ints((*conv.output[2:], tiles.writes, 0)),
        tiles.grid,
        *activation_arguments(conv.activation),
    )
    macros = defines(ACT=conv.activation.macro, RESIDUAL=len(residual), RESIDUAL_LAST=conv.residual_last)
    over = (tiles.writes, tiles.count, 1)
    state.add(Launch("winograd_out", conv.node.name, macros, out, over, f"{conv.shape} output", local=tiles.local(state)))
