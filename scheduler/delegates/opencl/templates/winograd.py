"""Winograd's F(4×4, 3×3): 36 multiplications where a direct convolution needs 144.

Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2016),
equations 12 and 13: Y = Aᵀ[(G g Gᵀ) ⊙ (Bᵀ d B)]A, the products for all tiles
and channels being 36 matrix products.
"""

import numpy as np

from scheduler.delegates.base import Array
from scheduler.delegates.opencl.launch import Ints, Launch, Tensor, Weights, Zeros
from scheduler.delegates.opencl.lower import Lowering
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


def winograd(state: Lowering, conv: Convolution) -> None:
    """Transform of the input, 36 products, transform of the output with bias, addition and activation."""
    lanes = state.layout.lanes
    n, c, h, w = conv.input
    _, m, oh, ow = conv.output
    down, across = -(-oh // TILE), -(-ow // TILE)
    tiles = n * down * across
    reads, writes = state.layout.blocks(c), state.layout.blocks(m)
    name = conv.node.output
    x = state.blocked(conv.x)
    v = View(
        f"{name}:points",
        (POINTS * tiles, c),
        0,
        (reads * lanes, lanes, reads * lanes, reads * lanes),
        lanes,
        POINTS * tiles * reads * lanes * 4,
    )
    p = View(
        f"{name}:products",
        (POINTS * tiles, m),
        0,
        (writes * lanes, lanes, writes * lanes, writes * lanes),
        lanes,
        POINTS * tiles * writes * lanes * 4,
    )
    light = CPU_LIGHT if state.traits.cpu else fit_local(state.traits, (reads, tiles, 1))
    size = Ints((h, w, reads, 0))
    grid = Ints((down, across, tiles, 0))
    into = (Tensor(x), Zeros(lanes), Tensor(v, written=True), size, grid, Ints(conv.pads[:2]))
    state.add(Launch("winograd_in", conv.node.name, defines(), into, (reads, tiles, 1), f"{conv.shape} input", local=light))

    problem = Problem("product", f"{POINTS}x{tiles}x{c}x{m}", tiles, writes, reads * lanes, POINTS)
    tile = state.schedules.choose(problem, rank_tiles(state.schedules, problem))
    vw, vc = tile["VW"], tile["VC"]
    matrices = np.stack([pack_dense(u.reshape(m, c, 1, 1), lanes, vc, blocked_input=True) for u in transform_weights(conv.weight)])
    counts = -(-tiles // vw), -(-writes // vc)
    power, as_image = image_power(state, matrices), reads_image(state, v)
    macros = defines(
        **tile,
        **switches(state),
        WIMAGE=power,
        XIMAGE=as_image,
        ACT="act_none",
        RESIDUAL=0,
        RESIDUAL_LAST=0,
        GROUPED=0,
        XPLAIN=0,
        YPLAIN=0,
        XVEC=reads_vectors(state),
        BATCHED=1,
        SPLIT=1,
        GROUP=1,
        CHECKED=0,
        FLAT=1,
    )
    product = (
        Tensor(v, image=as_image),
        Zeros(lanes),
        Weights(matrices, image=power),
        Weights(np.zeros(lanes, np.float32), "float"),
        Tensor(p, written=True),
        Ints((1, 1, reads, c)),
        Ints((1, 1, writes, m)),
        Ints((1, 1, 1, 1)),
        Ints((0, 0, 1, 1)),
        Ints(counts),
        Ints((tiles * reads * lanes, int(matrices[0].size), tiles * writes * lanes, tiles)),
        *activation_arguments(type(conv.activation)()),
    )
    over = (counts[1], counts[0], POINTS) if tile["CHANNELS_FIRST"] else (*counts, POINTS)
    local = fit_local(state.traits, over, tile["CHANNELS_FIRST"])
    state.add(Launch("conv", conv.node.name, macros, product, over, problem.shape, POINTS * tiles * c * m, local))

    residual = conv.residual_argument(state)
    y = state.result(name)
    out = (
        Tensor(p),
        Weights(pad_to(conv.bias, writes * lanes), "float"),
        *residual,
        Tensor(y, written=True),
        Ints((oh, ow, writes, 0)),
        grid,
        *activation_arguments(conv.activation),
    )
    macros = defines(ACT=conv.activation.macro, RESIDUAL=len(residual), RESIDUAL_LAST=conv.residual_last)
    state.add(Launch("winograd_out", conv.node.name, macros, out, (writes, tiles, 1), f"{conv.shape} output", local=light))
