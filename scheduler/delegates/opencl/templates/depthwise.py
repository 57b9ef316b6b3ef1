"""Depthwise convolutions: one channel in, one out."""

from scheduler.delegates.opencl.launch import Ints, Launch, TensorArgument, Weights, Zeros
from scheduler.delegates.opencl.lowering import KernelLowering
from scheduler.delegates.opencl.schedule import KernelProblem, Parameters
from scheduler.delegates.opencl.templates.packing import pack_depthwise
from scheduler.delegates.opencl.templates.parts import (
    CPU_DEPTHWISE,
    activation_arguments,
    defines,
    fit_local,
    image_power,
    reads_image,
    switches,
)
from scheduler.delegates.opencl.templates.window import Convolution, pad_to

#: Largest window whose row of loads stays in registers or the first cache.
MAX_WIDTH = 11

#: Ways to load that are quicker for some shapes: checks everywhere where most tiles are at a border, nothing kept for the next pixel.
OTHER_WAYS: tuple[dict[str, int], ...] = ({"REGIONS": 0}, {"MERGED": 0})


def suits(conv: Convolution) -> bool:
    """Whether each channel has a group of its own and the window is not too wide."""
    channels = conv.input[1]
    return conv.groups == channels == conv.output[1] and channels > 1 and conv.kernel[1] <= MAX_WIDTH and conv.residual is None


def depthwise(state: KernelLowering, conv: Convolution) -> None:
    """A depthwise convolution, tiles of neighbouring pixels of a row."""
    lanes = state.blocking.lanes
    n, _, h, w = conv.input
    _, m, oh, ow = conv.output
    blocks = state.blocking.blocks(m)
    problem = KernelProblem("depthwise", conv.shape, conv.pixels, blocks, conv.weight[0].size)
    tile = state.schedules.parameters(problem, candidates(state, conv))
    vw = tile["VW"]
    x, y = state.blocked(conv.x), state.result(conv.node.output, may_be_plain=True)
    tiles = -(-ow // vw)
    weight = pack_depthwise(conv.weight, lanes)
    power, as_image = image_power(state, weight), reads_image(state, x)
    macros = defines(
        **{**switches(state), **tile},
        WIMAGE=power,
        XIMAGE=as_image,
        ACT=conv.activation.macro,
        YPLAIN=y.plain,
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
        Ints((h, w, conv.dilation[0], 0)),
        Ints((oh, ow, blocks, m)),
        Ints((conv.kernel[0], conv.stride[0], *conv.pads[:2])),
        Ints((tiles, 0)),
        *activation_arguments(conv.activation),
    )
    grid = (blocks, tiles * oh, n) if tile["CHANNELS_FIRST"] else (tiles * oh, blocks, n)
    local = CPU_DEPTHWISE if state.traits.cpu else fit_local(state.traits, grid)
    state.add(Launch("depthwise", conv.node.name, macros, arguments, grid, conv.shape, conv.macs, local))


def candidates(state: KernelLowering, conv: Convolution) -> list[Parameters]:
    """Tiles, the best first.

    A tile of VW pixels loads (VW − 1)·stride + KW vectors a row of the window
    for VW·KW multiply-adds; the wider the better, while sums and a row of loads
    stay in registers, and those that do not cost half an operation each. The
    order of the grid with pixels first was the quicker one for 23 of 35 shapes on a Zen 4.
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
    return [*tiles[:2], *(tiles[0] | other for other in OTHER_WAYS), *tiles[2:]]
