"""The first convolution of a network, which reads an NCHW image of few channels."""

from scheduler.delegates.opencl.launch import Ints, Launch, TensorArgument, Weights
from scheduler.delegates.opencl.lowering import KernelLowering
from scheduler.delegates.opencl.schedule import KernelProblem, Parameters, rank_tiles
from scheduler.delegates.opencl.templates.packing import pack_stem
from scheduler.delegates.opencl.templates.parts import activation_arguments, defines, fit_local, image_power, switches
from scheduler.delegates.opencl.templates.window import Convolution, pad_to

#: More input channels are quicker in blocks.
MAX_CHANNELS = 4


def suits(state: KernelLowering, conv: Convolution) -> bool:
    """Whether the input is a plain image of few channels, and nothing is added to the result."""
    plain = state.is_plain(conv.x) and conv.input[1] <= MAX_CHANNELS and conv.groups == 1
    return plain and conv.residual is None and conv.dilation == (1, 1) and conv.output[3] > 1


def stem(state: KernelLowering, conv: Convolution) -> None:
    """A convolution from NCHW, tiles of neighbouring pixels of a row."""
    lanes = state.blocking.lanes
    n, c, h, w = conv.input
    _, m, oh, ow = conv.output
    blocks = state.blocking.blocks(m)
    problem = KernelProblem("stem", conv.shape, conv.pixels, blocks, conv.weight[0].size)
    ranked = sorted(rank_tiles(state.schedules, problem, lambda vw, vc: vw <= ow), key=lambda tile: _preference(state, ow, tile))
    tile = state.schedules.parameters(problem, ranked)
    vw, vc = tile["VW"], tile["VC"]
    x, y = state.plain(conv.x), state.result(conv.node.output, may_be_plain=True)
    tiles = -(-ow // vw), -(-blocks // vc)
    weight = pack_stem(conv.weight, lanes, vc)
    power = image_power(state, weight)
    macros = defines(
        **tile, **switches(state), WIMAGE=power, ACT=conv.activation.macro, YPLAIN=y.plain, KW=conv.kernel[1], SW=conv.stride[1]
    )
    arguments = (
        TensorArgument(x),
        Weights(weight, image=power),
        Weights(pad_to(conv.bias, tiles[1] * vc * lanes), "float"),
        TensorArgument(y, written=True),
        Ints((h, w, c, 0)),
        Ints((oh, ow, blocks, m)),
        Ints((conv.kernel[0], conv.stride[0], *conv.pads[:2])),
        Ints((*tiles, 0, 0)),
        *activation_arguments(conv.activation),
    )
    across, down = tiles[0] * oh, tiles[1]
    first = tile["CHANNELS_FIRST"]
    grid = (down, across, n) if first else (across, down, n)
    state.add(Launch("stem", conv.node.name, macros, arguments, grid, conv.shape, conv.macs, fit_local(state.traits, grid, first)))


def _preference(state: KernelLowering, width: int, tile: Parameters) -> tuple[bool, bool]:
    """Order of tiles before that of the ranking: not much overlap at the end of a row, and the quickest on a CPU first.

    Inputs are read one by one here, so few pixels and many blocks are better
    than elsewhere: of 40 tiles on a Zen 4, two pixels times four blocks.
    """
    wasted = -(-width // tile["VW"]) * tile["VW"] > 1.1 * width
    return wasted, state.traits.cpu and (tile["VW"], tile["VC"]) != (2, 4)
