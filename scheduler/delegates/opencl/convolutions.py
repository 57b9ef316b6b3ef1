"""Convolutions and fully connected layers: choice of kernel, tile and arguments, and weights in the order in which kernels read them."""

from dataclasses import dataclass, replace

import numpy as np

from scheduler.delegates.base import Array, UnableError
from scheduler.delegates.opencl.graph import NONE, FusedActivation, KernelNode
from scheduler.delegates.opencl.launch import Argument, Launch, Size, TensorArgument, TensorView, Weights, Zeros
from scheduler.delegates.opencl.lowering import (
    CPU_DEPTHWISE,
    CPU_LIGHT,
    KernelLowering,
    activation,
    activation_arguments,
    as_float,
    defines,
    fit_local,
    image_power,
    reads_image,
    reads_vectors,
    switches,
)
from scheduler.delegates.opencl.schedule import GPU_WORK_ITEMS, TILE_BLOCKS, KernelProblem, Parameters, least_cycles, rank_tiles


def pack(weight: Array, lanes: int, vc: int, width: int | None = None, order: tuple[int, ...] = (0, 3, 4, 2, 1)) -> Array:
    """Return weights M×C×KH×KW as [tile][kh][kw][input channel][vc][lane], or with the middle axes in another order.

    Args:
        width: Number of input channels with zeros appended; None for the number in `weight`.
    """
    m, c, kh, kw = weight.shape
    width, tiles = width or c, -(-m // (lanes * vc))
    padded = np.zeros((tiles * vc * lanes, width, kh, kw), np.float32)
    padded[:m, :c] = weight
    return np.ascontiguousarray(padded.reshape(tiles, vc * lanes, width, kh, kw).transpose(order))


def input_blocks(weight: Array, groups: int, lanes: int, vc: int) -> list[tuple[int, int]]:
    """Return the range of input blocks that each tile of a grouped convolution reads, for every group with a part in the tile."""
    m, per_group, size = weight.shape[0], weight.shape[1], vc * lanes
    step = m // groups
    ranges = []
    for first in range(0, m, size):
        low, high = first // step, (min(m, first + size) - 1) // step
        ranges.append((low * per_group // lanes, ((high + 1) * per_group - 1) // lanes + 1))
    return ranges


def pack_grouped(weight: Array, groups: int, channels: int, lanes: int, vc: int) -> tuple[Array, Array]:
    """Return the weights of a grouped convolution, for tiles of output blocks that read only the input blocks of their groups.

    If groups and blocks are not aligned, a block holds channels of several
    groups; weights between channels of different groups are zero.
    """
    m, per_group, kh, kw = weight.shape
    step = m // groups
    size = vc * lanes
    blocks = -(-channels // lanes)
    ranges = input_blocks(weight, groups, lanes, vc)
    tiles = len(ranges)
    count = max(stop - start for start, stop in ranges)
    first = [min(start, blocks - count) for start, _ in ranges]
    packed = np.zeros((tiles, kh, kw, count * lanes, size), np.float32)
    for o in range(m):
        t, group = o // size, o // step
        start = group * per_group - first[t] * lanes
        packed[t, :, :, start : start + per_group, o % size] = weight[o].transpose(1, 2, 0)
    return packed, np.asarray(first, np.int32)


@dataclass(frozen=True)
class Convolution:
    """A convolution with all operators that are merged into it."""

    node: KernelNode  # The node.
    x: str  # Name of the input.
    weight: Array  # M×(C/groups)×KH×KW.
    bias: Array  # M numbers.
    residual: str | None  # Name of the tensor that is added, or None.
    residual_last: bool  # Whether it is added after the activation.
    activation: FusedActivation  # Activation at the end.
    input: tuple[int, int, int, int]  # N, C, H, W.
    output: tuple[int, int, int, int]  # N, M, OH, OW.
    stride: tuple[int, int]  # Rows, columns.
    dilation: tuple[int, int]  # Rows, columns.
    pads: tuple[int, int, int, int]  # Top, left, bottom, right.
    groups: int  # Groups.

    @property
    def kernel(self) -> tuple[int, int]:
        """Rows and columns of the window."""
        return self.weight.shape[2], self.weight.shape[3]

    @property
    def pixels(self) -> int:
        """Output pixels of all images."""
        return self.output[0] * self.output[2] * self.output[3]

    @property
    def macs(self) -> int:
        """Number of multiply-accumulates."""
        return self.pixels * int(self.weight.size)

    @property
    def shape(self) -> str:
        """All parameters that decide the convolution's time, in words."""
        n, c, h, w = self.input
        _, m, oh, ow = self.output
        description = f"{n}x{c}x{h}x{w}->{m}x{oh}x{ow} k{self.kernel[0]}x{self.kernel[1]} s{self.stride[0]}x{self.stride[1]}"
        if self.dilation != (1, 1):
            description += f" d{self.dilation[0]}x{self.dilation[1]}"
        return description + (f" g{self.groups}" if self.groups > 1 else "")

    def residual_argument(self, state: KernelLowering) -> tuple[TensorArgument, ...]:
        """Return the tensor that is added, or an empty tuple."""
        return () if self.residual is None else (TensorArgument(state.blocked(self.residual)),)


def read_convolution(state: KernelLowering, node: KernelNode) -> Convolution:
    """Return a node as a convolution."""
    x = node.inputs[0]
    if len(state.shape(x)) != 4:
        raise UnableError(f"its input has rank {len(state.shape(x))}, convolutions are over images")
    weight = as_float(state.constant(node.inputs[1]))
    n, c, h, w = state.shape(x)
    on, om, oh, ow = state.shape(node.output)
    stride, dilation = (tuple(node.attrs.get(key, (1, 1))) for key in ("strides", "dilations"))
    top, left, bottom, right = node.attrs.get("pads", (0, 0, 0, 0))
    return Convolution(
        node=node,
        x=x,
        weight=weight,
        bias=read_bias(state, node, om),
        residual=node.inputs[3] if node.attrs.get("residual") else None,
        residual_last=bool(node.attrs.get("residual_last")),
        activation=activation(node),
        input=(n, c, h, w),
        output=(on, om, oh, ow),
        stride=(stride[0], stride[1]),
        dilation=(dilation[0], dilation[1]),
        pads=(top, left, bottom, right),
        groups=int(node.attrs.get("group", 1)),
    )


def read_bias(state: KernelLowering, node: KernelNode, channels: int) -> Array:
    """Return the third input of a node, or zeros without one."""
    if len(node.inputs) > 2 and node.inputs[2]:
        return np.ascontiguousarray(np.broadcast_to(as_float(state.constant(node.inputs[2])).reshape(-1), (channels,)))
    return np.zeros(channels, np.float32)


def pad_to(values: Array, length: int) -> Array:
    """Return `values` with zeros appended up to `length`."""
    padded = np.zeros(length, np.float32)
    padded[: len(values)] = values
    return padded


#: Width of the largest window whose row of loads stays in registers or the first-level cache.
MAX_WIDTH = 11

#: Load variants that are faster for some shapes: bounds checked everywhere if most tiles meet a border; no loads kept for the next pixel.
LOAD_VARIANTS: tuple[dict[str, int], ...] = ({"REGIONS": 0}, {"MERGED": 0})


def suits_depthwise(conv: Convolution) -> bool:
    """Return whether the depthwise kernel suits: each channel is its own group, and the window is not too wide."""
    channels = conv.input[1]
    return conv.groups == channels == conv.output[1] and channels > 1 and conv.kernel[1] <= MAX_WIDTH and conv.residual is None


def depthwise(state: KernelLowering, conv: Convolution) -> None:
    """Lower a depthwise convolution to tiles of neighbouring pixels of a row."""
    lanes = state.blocking.lanes
    n, _, h, w = conv.input
    _, m, oh, ow = conv.output
    blocks = state.blocking.blocks(m)
    problem = KernelProblem("depthwise", conv.shape, conv.pixels, blocks, conv.weight[0].size)
    tile = state.schedules.parameters(problem, depthwise_tiles(state, conv))
    vw = tile["VW"]
    x, y = state.blocked(conv.x), state.result(conv.node.output, allow_row_major=True)
    tiles = -(-ow // vw)
    weight = pack(conv.weight, lanes, 1)
    power, as_image = image_power(state, weight), reads_image(state, x)
    macros = defines(
        **{**switches(state), **tile},
        WIMAGE=power,
        XIMAGE=as_image,
        ACT=conv.activation.macro,
        YPLAIN=y.is_row_major,
        KW=conv.kernel[1],
        SW=conv.stride[1],
        DW=conv.dilation[1],
    )
    arguments = (
        TensorArgument(x, image=as_image),
        Zeros(lanes),
        Weights(weight, image=power),
        Weights(pad_to(conv.bias, blocks * lanes), "float"),
        TensorArgument(y, written=True),
        (h, w, conv.dilation[0], 0),
        (oh, ow, blocks, m),
        (conv.kernel[0], conv.stride[0], *conv.pads[:2]),
        (tiles, 0),
        *activation_arguments(conv.activation),
    )
    grid = (blocks, tiles * oh, n) if tile["CHANNELS_FIRST"] else (tiles * oh, blocks, n)
    local = CPU_DEPTHWISE if state.traits.cpu else fit_local(state.traits, grid)
    state.add(Launch("depthwise", conv.node.name, macros, arguments, grid, conv.shape, conv.macs, local))


def depthwise_tiles(state: KernelLowering, conv: Convolution) -> list[Parameters]:
    """Return the tiles, best first.

    A tile of VW pixels loads (VW − 1)·stride + KW vectors per row of the window
    for VW·KW multiply-adds. Wider tiles are better while the sums and a row of
    loads stay in registers; each value that does not costs half an operation.
    The grid order with pixels first was faster for 23 of 35 shapes on a Zen 4.
    """
    ow = conv.output[3]
    ranked: list[tuple[float, int]] = []
    for vw in (1, 2, 3, 4, 5, 6, 7, 8):
        if vw > ow:
            continue
        span = (vw - 1) * conv.stride[1] + (conv.kernel[1] - 1) * conv.dilation[1] + 1
        spilled = max(0, vw + span - state.traits.registers)
        work = -(-ow // vw) * (vw * conv.kernel[1] + span + spilled / 2 + 6)
        ranked.append((work, -vw))
    ranked.sort()
    tiles = [{"VW": -vw, "CHANNELS_FIRST": order} for _, vw in ranked for order in (0, 1)]
    return [*tiles[:2], *(tiles[0] | variant for variant in LOAD_VARIANTS), *tiles[2:]]


def suits_stem(state: KernelLowering, conv: Convolution) -> bool:
    """Return whether the input is a row-major image of few channels, and nothing is added to the result."""
    is_small_image = state.is_row_major_only(conv.x) and conv.input[1] <= MAX_STEM_CHANNELS and conv.groups == 1
    return is_small_image and conv.residual is None and conv.dilation == (1, 1) and conv.output[3] > 1


def stem(state: KernelLowering, conv: Convolution) -> None:
    """Lower a convolution of an NCHW input with few channels to tiles of neighbouring pixels of a row."""
    lanes = state.blocking.lanes
    n, c, h, w = conv.input
    _, m, oh, ow = conv.output
    blocks = state.blocking.blocks(m)
    problem = KernelProblem("stem", conv.shape, conv.pixels, blocks, conv.weight[0].size)
    ranked = sorted(rank_tiles(state.schedules, problem, lambda vw, vc: vw <= ow), key=lambda tile: _stem_preference(state, ow, tile))
    tile = state.schedules.parameters(problem, ranked)
    vw, vc = tile["VW"], tile["VC"]
    x, y = state.row_major(conv.x), state.result(conv.node.output, allow_row_major=True)
    tiles = -(-ow // vw), -(-blocks // vc)
    weight = pack(conv.weight, lanes, vc, order=(0, 2, 3, 4, 1))
    power = image_power(state, weight)
    macros = defines(
        **tile, **switches(state), WIMAGE=power, ACT=conv.activation.macro, YPLAIN=y.is_row_major, KW=conv.kernel[1], SW=conv.stride[1]
    )
    arguments = (
        TensorArgument(x),
        Weights(weight, image=power),
        Weights(pad_to(conv.bias, tiles[1] * vc * lanes), "float"),
        TensorArgument(y, written=True),
        (h, w, c, 0),
        (oh, ow, blocks, m),
        (conv.kernel[0], conv.stride[0], *conv.pads[:2]),
        (*tiles, 0, 0),
        *activation_arguments(conv.activation),
    )
    across, down = tiles[0] * oh, tiles[1]
    first = tile["CHANNELS_FIRST"]
    grid = (down, across, n) if first else (across, down, n)
    state.add(Launch("stem", conv.node.name, macros, arguments, grid, conv.shape, conv.macs, fit_local(state.traits, grid, first)))


def _stem_preference(state: KernelLowering, width: int, tile: Parameters) -> tuple[bool, bool]:
    """Return a sort key that precedes the ranking: little overlap at the end of a row, and on a CPU the fastest tile first.

    The kernel reads inputs one by one, so few pixels and many blocks are better
    than in other kernels: two pixels times four blocks, the best of 40 tiles on a Zen 4.
    """
    wasted = -(-width // tile["VW"]) * tile["VW"] > 1.1 * width
    return wasted, state.traits.cpu and (tile["VW"], tile["VC"]) != (2, 4)


#: Output pixels of a tile in each direction, and input pixels.
TILE, SPAN = 4, 6
POINTS = SPAN * SPAN

#: Cycles to transform one tile of one block of channels, measured on a Zen 4.
TRANSFORM_CYCLES = 300
#: Share of the direct convolution's time below which the estimate is trusted.
MAX_TIME_RATIO = 0.9

#: G of F(4×4, 3×3) with interpolation points 0, ±1, ±2, ∞.
G = np.array(
    [[1 / 4, 0, 0], [-1 / 6, -1 / 6, -1 / 6], [-1 / 6, 1 / 6, -1 / 6], [1 / 24, 1 / 12, 1 / 6], [1 / 24, -1 / 12, 1 / 6], [0, 0, 1]]
)


def suits_winograd(state: KernelLowering, conv: Convolution) -> bool:
    """Return whether Winograd's algorithm suits: a 3×3 convolution with stride 1 for which it is requested or estimated to be faster."""
    switch = state.options.winograd
    legal = conv.kernel == (3, 3) and conv.stride == conv.dilation == (1, 1) and conv.groups == 1
    if not legal or switch == "off" or state.blocking.half:
        return False
    if switch == "on":
        return True
    tuned = state.schedules.tuned.get(("winograd", conv.shape))
    return bool(tuned["USE"]) if tuned is not None else is_winograd_faster(state, conv)


def is_winograd_faster(state: KernelLowering, conv: Convolution) -> bool:
    """Return whether Winograd's fewer multiplications outweigh transforms, 36 weights for 9, and extra pixels of tiles at the border."""
    reads, writes = state.blocking.blocks(conv.input[1]), state.blocking.blocks(conv.output[1])
    depth = reads * state.blocking.lanes
    tiles = conv.output[0] * -(-conv.output[2] // TILE) * -(-conv.output[3] // TILE)
    direct = least_cycles(state.schedules, KernelProblem("conv", conv.shape, conv.pixels, writes, 9 * depth))
    product = least_cycles(state.schedules, KernelProblem("product", conv.shape, tiles, writes, depth, POINTS))
    return product + TRANSFORM_CYCLES * tiles * (reads + writes) < MAX_TIME_RATIO * direct


def transform_weights(weight: Array) -> Array:
    """Return G g Gᵀ of each 3×3 window: M×C×3×3 to 36×M×C."""
    u = np.einsum("ak,mckl,bl->abmc", G, weight.astype(np.float64), G)
    return np.asarray(u.reshape(POINTS, *weight.shape[:2]), np.float32)


def winograd(state: KernelLowering, conv: Convolution) -> None:
    """Lower a convolution to a transform of the input, 36 products with the transformed weights, and a transform of the output."""
    n, c, h, w = conv.input
    _, m, oh, ow = conv.output
    lanes, reads, writes = state.blocking.lanes, state.blocking.blocks(c), state.blocking.blocks(m)
    down, across = -(-oh // TILE), -(-ow // TILE)
    count, sizes = n * down * across, (down, across, n * down * across, 0)
    points, products = _matrices(state, f"{conv.node.output}:points", count, c), _matrices(state, f"{conv.node.output}:products", count, m)
    grid = (reads, count, 1)
    # both transforms use the same work-group, because their grids differ only in the first dimension
    light = CPU_LIGHT if state.traits.cpu else fit_local(state.traits, grid)
    arguments: tuple[Argument, ...] = (
        TensorArgument(state.blocked(conv.x)),
        Zeros(lanes),
        TensorArgument(points, written=True),
        (h, w, reads, 0),
        sizes,
        conv.pads[:2],
    )
    state.add(Launch("winograd_in", conv.node.name, defines(), arguments, grid, f"{conv.shape} input", local=light))
    # one launch of the direct kernel computes all 36 products
    problem = KernelProblem("product", f"{POINTS}x{count}x{c}x{m}", count, writes, reads * lanes, POINTS)
    tile = state.schedules.parameters(problem, rank_tiles(state.schedules, problem))
    vc = tile["VC"]
    matrices = np.stack([pack(u.reshape(m, c, 1, 1), lanes, vc, reads * lanes) for u in transform_weights(conv.weight)])
    counts = -(-count // tile["VW"]), -(-writes // vc)
    power, as_image = image_power(state, matrices), reads_image(state, points)
    fixed = dict.fromkeys(("RESIDUAL", "RESIDUAL_LAST", "GROUPED", "XPLAIN", "YPLAIN", "CHECKED"), 0)
    fixed |= dict.fromkeys(("BATCHED", "SPLIT", "GROUP", "FLAT"), 1)
    macros = defines(**tile, **switches(state), **fixed, WIMAGE=power, XIMAGE=as_image, ACT=NONE.macro, XVEC=reads_vectors(state))
    arguments = (
        TensorArgument(points, image=as_image),
        Zeros(lanes),
        Weights(matrices, image=power),
        Weights(np.zeros(lanes, np.float32), "float"),
        TensorArgument(products, written=True),
        (1, 1, reads, c),
        (1, 1, writes, m),
        (1, 1, 1, 1),
        (0, 0, 1, 1),
        counts,
        (count * reads * lanes, int(matrices[0].size), count * writes * lanes, count),
        *activation_arguments(NONE),
    )
    over, local = tile_grid(state, tile, counts, POINTS)
    state.add(Launch("conv", conv.node.name, macros, arguments, over, problem.shape, POINTS * count * c * m, local))
    residual = conv.residual_argument(state)
    arguments = (
        TensorArgument(products),
        Weights(pad_to(conv.bias, writes * lanes), "float"),
        *residual,
        TensorArgument(state.result(conv.node.output), written=True),
        (oh, ow, writes, 0),
        sizes,
        *activation_arguments(conv.activation),
    )
    macros = defines(ACT=conv.activation.macro, RESIDUAL=len(residual), RESIDUAL_LAST=conv.residual_last)
    state.add(Launch("winograd_out", conv.node.name, macros, arguments, (writes, count, 1), f"{conv.shape} output", local=light))


def _matrices(state: KernelLowering, name: str, tiles: int, channels: int) -> TensorView:
    """Return the memory of 36 matrices, with a row of blocked channels for each tile."""
    lanes, row = state.blocking.lanes, state.blocking.blocks(channels) * state.blocking.lanes
    return TensorView(name, (POINTS * tiles, channels), 0, (row, lanes, row, row), lanes, POINTS * tiles * row * 4)


#: Maximum number of work-items that share one tile.
MAX_SPLIT = 16
#: Maximum number of channels of an input that is read channel by channel from NCHW; an input with more is converted to blocks first.
MAX_STEM_CHANNELS = 4


def convolution(state: KernelLowering, node: KernelNode) -> None:
    """Lower a convolution of images to the kernel that suits its shape."""
    conv = read_convolution(state, node)
    if state.options.borders == "pad" and any(conv.pads):
        conv = padded(state, conv)
    if suits_depthwise(conv):
        depthwise(state, conv)
    elif suits_stem(state, conv):
        stem(state, conv)
    elif suits_winograd(state, conv):
        winograd(state, conv)
    else:
        direct(state, conv)


def padded(state: KernelLowering, conv: Convolution) -> Convolution:
    """Return the convolution of a padded copy of its input, which has no pads."""
    n, c, h, w = conv.input
    top, left, bottom, right = conv.pads
    name, shape = f"{conv.node.name}:padded", (n, c, h + top + bottom, w + left + right)
    state.graph.shapes[name] = shape
    view = state.blocking.blocked(name, shape)
    state.move(state.blocked(conv.x), view, conv.node.name, start=(0, top, left, 0))
    state.alias(name, view)
    return replace(conv, x=name, input=shape, pads=(0, 0, 0, 0))


def direct(state: KernelLowering, conv: Convolution) -> None:
    """Lower any convolution to a matrix product over gathered pixels."""
    lanes = state.blocking.lanes
    _, c, h, w = conv.input
    _, m, oh, ow = conv.output
    blocks = state.blocking.blocks(m)
    from_plain = state.is_row_major_only(conv.x) and c <= MAX_STEM_CHANNELS and conv.groups == 1
    x = state.row_major(conv.x) if from_plain else state.blocked(conv.x)
    depth = conv.weight[0].size if from_plain else conv.kernel[0] * conv.kernel[1] * -(-conv.weight.shape[1] // lanes) * lanes
    problem = KernelProblem("conv", conv.shape, conv.pixels, blocks, depth, depths=grouped_depths(conv, lanes))
    tile = state.schedules.parameters(problem, candidates(state, problem))
    vw, vc = tile["VW"], tile["VC"]
    weight, reads, first = _packed(state, conv, vc, from_plain)
    residual = conv.residual_argument(state)
    y = state.result(conv.node.output, allow_row_major=True)
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
        YPLAIN=y.is_row_major,
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
        (h, w, reads, c),
        (oh, ow, blocks, m),
        (*conv.kernel, *conv.stride),
        (*conv.pads[:2], *conv.dilation),
        tiles,
        (0, 0, 0, conv.pixels),
        *activation_arguments(conv.activation),
    )
    state.add(Launch("conv", conv.node.name, macros, arguments, grid, conv.shape, conv.macs, local))


def _packed(state: KernelLowering, conv: Convolution, vc: int, from_row_major: bool) -> tuple[Array, int, tuple[Argument, ...]]:
    """Return the packed weights, the number of input blocks (or channels) that a tile reads, and the first block of each tile of groups."""
    lanes, c = state.blocking.lanes, conv.input[1]
    if conv.groups > 1:
        weight, starts = pack_grouped(conv.weight, conv.groups, c, lanes, vc)
        return weight, weight.shape[3] // lanes, (Weights(starts, "int"),)
    if from_row_major:
        return pack(conv.weight, lanes, vc), c, ()
    return pack(conv.weight, lanes, vc, state.blocking.blocks(c) * lanes), state.blocking.blocks(c), ()


def grouped_depths(conv: Convolution, lanes: int) -> dict[int, int]:
    """Return the multiply-accumulates per output element by blocks of a tile; a tile with parts of several groups reads all of these."""
    if conv.groups == 1:
        return {}
    window = conv.kernel[0] * conv.kernel[1]
    reads = {vc: max(stop - start for start, stop in input_blocks(conv.weight, conv.groups, lanes, vc)) for vc in TILE_BLOCKS}
    return {vc: window * blocks * lanes for vc, blocks in reads.items()}


def split_of(state: KernelLowering, items: int, blocks: int, local: Size) -> int:
    """Return the number of work-items that share one tile: enough to fill a GPU, while each has channels left and the group is legal."""
    split = 1
    if state.traits.cpu:
        return split
    room = min(state.traits.max_local // (local[0] * local[1]), state.traits.max_sizes[2])
    while split < MAX_SPLIT and 2 * split <= room and items * split < GPU_WORK_ITEMS and blocks >= 4 * split:
        split *= 2
    return split


def _even(view: TensorView) -> bool:
    """Return whether all pixels of all images have equal distances in memory."""
    n, _, h, w = view.image
    image, _, row, column = view.strides
    return (h == 1 or row == w * column) and (n == 1 or image == h * w * column)


def candidates(state: KernelLowering, problem: KernelProblem) -> list[Parameters]:
    """Return the legal tiles, best first; for the schedule `tvm`, the tile of paper 004's example.

    Computing in half precision takes registers for sums in floats and, of half the size, for the sums in half that are added to them.
    """
    ranked = rank_tiles(state.schedules, problem, lambda vw, vc: not state.native or 3 * vw * vc + vc + vw <= 2 * state.traits.registers)
    if state.options.schedule == "tvm":
        # VH 1, VW 4, VC 4: four neighbouring pixels and four channels, so a vector has no more than four lanes.
        example = [tile for tile in ranked if tile["VW"] == min(4, problem.pixels) and tile["VC"] == 1]
        return example or ranked
    return ranked


def tile_grid(state: KernelLowering, tile: Parameters, tiles: tuple[int, int], batch: int = 1) -> tuple[Size, Size]:
    """Return grid and work-group of a kernel with one work-item per tile."""
    grid = (tiles[1], tiles[0], batch) if tile["CHANNELS_FIRST"] else (tiles[0], tiles[1], batch)
    return grid, fit_local(state.traits, grid, tile["CHANNELS_FIRST"])


def linear(state: KernelLowering, node: KernelNode) -> None:
    """Lower a Gemm with constant weights to a 1×1 convolution whose pixels are the rows."""
    if node.attrs.get("transA") or node.attrs.get("alpha", 1.0) != 1.0 or node.attrs.get("beta", 1.0) != 1.0:
        raise UnableError("products with transA, alpha or beta are not computed")
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
