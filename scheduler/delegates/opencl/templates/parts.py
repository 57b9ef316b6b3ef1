"""What templates share: macros, grids over channels and pixels, activations as arguments."""

from math import prod

from scheduler.delegates.base import Array
from scheduler.delegates.opencl.device import Traits
from scheduler.delegates.opencl.fuse import NONE, FusedActivation
from scheduler.delegates.opencl.graph import KernelNode
from scheduler.delegates.opencl.launch import Argument, Defines, Float, Size
from scheduler.delegates.opencl.lowering import KernelLowering
from scheduler.delegates.opencl.tensors import TEXEL, TensorView

#: Work-group of kernels with little work an item on a CPU: PoCL loops over it, which costs less than a group each.
CPU_LIGHT = (4, 16, 1)
#: Work-group of depthwise kernels on a CPU; of four that were tried on a Zen 4 the quickest.
CPU_DEPTHWISE = (4, 4, 1)


def defines(**macros: int | str) -> Defines:
    """Macros in a fixed order, so that equal ones are built once."""
    return tuple(sorted((name, str(int(value) if isinstance(value, bool) else value)) for name, value in macros.items()))


def switches(state: KernelLowering) -> dict[str, int]:
    """Macros of the options that change how a convolution is computed, not what."""
    options = state.options
    return {"REGIONS": options.borders == "regions", "MERGED": options.loads == "merged", "UNROLL": options.unroll}


def reads_vectors(state: KernelLowering) -> bool:
    """Whether convolutions load a block of inputs at once and take it apart; PoCL is quicker with one load a lane, of floats."""
    access = state.options.access
    return state.blocking.half or not state.traits.cpu if access == "auto" else access == "vector"


def activation_arguments(activation: FusedActivation) -> tuple[Argument, Argument]:
    """The arguments `ACT_ARGS`."""
    return Float(activation.a), Float(activation.b)


def activation(node: KernelNode) -> FusedActivation:
    """The activation at the end of a node."""
    kind = node.attrs.get("activation", NONE)
    return kind if isinstance(kind, FusedActivation) else NONE


def light_grid(traits: Traits, blocks: int, pixels: int, images: int) -> tuple[dict[str, int], Size, Size]:
    """Macros, grid and work-group of a kernel with one work-item per block of channels and pixel.

    Neighbouring work-items read neighbouring memory: blocks of one pixel, or pixels of one block.
    """
    first = int(traits.blocks_inside)
    grid = (blocks, pixels, images) if first else (pixels, blocks, images)
    return {"CHANNELS_FIRST": first}, grid, CPU_LIGHT if traits.cpu else fit_local(traits, grid)


def fit_local(traits: Traits, grid: Size, channels_first: int = 1) -> Size:
    """A work-group for a grid: the device's own where the grid is large, its first side no longer than the grid's otherwise."""
    if traits.cpu:
        channels, pixels, images = traits.local
        return (channels, pixels, images) if channels_first else (pixels, channels, images)
    first = min(traits.local[0], _power(grid[0]))
    return (first, min(prod(traits.local) // first, _power(grid[1])), 1)


def _power(size: int) -> int:
    """The least power of 2 that is not below `size`."""
    return int(1 << (size - 1).bit_length())


def line_local(traits: Traits) -> Size:
    """Work-group of a kernel with a one-dimensional grid."""
    return (16,) if traits.cpu else (min(64, traits.max_local),)


def describe(node: KernelNode, *shapes: tuple[int, ...]) -> str:
    """The shapes of an operator in words."""
    return f"{node.op.lower()} " + " ".join("x".join(map(str, shape)) for shape in shapes)


def image_power(state: KernelLowering, weights: Array) -> int:
    """Power of 2 of the width of an image of these weights; 0 where the device reads buffers or has no image so large."""
    width, height, _ = state.traits.images
    texels = weights.size // TEXEL
    if state.blocking.lanes != TEXEL or width < 2:
        return 0
    power = min(width.bit_length() - 1, max(1, (texels - 1).bit_length()))
    return power if texels <= height << power else 0


def reads_image(state: KernelLowering, x: TensorView) -> bool:
    """Whether a kernel reads an input as an image, if its memory is not too large for one."""
    return state.blocking.lanes == x.lanes == TEXEL and state.traits.images[2] > 0


def strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides."""
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))
