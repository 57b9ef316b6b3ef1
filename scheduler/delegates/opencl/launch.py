"""Kernel launches as data: each kernel with its constants, arguments and grid, and the position of its tensors in device memory."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, Literal

from scheduler.delegates.base import Array
from scheduler.memory import Lifetime, Lifetimes

Shape = tuple[int, ...]
#: Channels of an image's texel.
TEXEL = 4

MemoryOwner = Literal["device", "input", "output", "constant"]


@dataclass(frozen=True)
class Blocking:
    """The layout of blocked tensors on one device."""

    lanes: int  # Adjacent channels of a block: 4 as in PHWC4 (paper 000), or 8 or 16 where registers are that wide.
    #: Whether the blocks of one pixel are adjacent (N, H, W, block, lane); otherwise each block is a separate image (N, block, H, W,
    #: lane), as in PHWC4.
    blocks_inside: bool
    half: bool = False  # Whether activations and weights are stored in half precision.

    @property
    def item_bytes(self) -> int:
        """Bytes per element of a blocked tensor."""
        return 2 if self.half else 4

    def blocks(self, channels: int) -> int:
        """Return the number of blocks that hold `channels`; lanes of the last block may be padding."""
        return -(-channels // self.lanes)

    def blocked(self, buffer: str, shape: Shape) -> "TensorView":
        """Return a blocked tensor of shape N×C or N×C×H×W that fills a buffer."""
        n, c, h, w = image_shape(shape)
        blocks = self.blocks(c)
        if self.blocks_inside:
            strides = (h * w * blocks * self.lanes, self.lanes, w * blocks * self.lanes, blocks * self.lanes)
        else:
            strides = (blocks * h * w * self.lanes, h * w * self.lanes, w * self.lanes, self.lanes)
        return TensorView(buffer, shape, 0, strides, self.lanes, n * h * w * blocks * self.lanes * self.item_bytes)


@dataclass(frozen=True)
class TensorView:
    """A tensor, or a slice of a tensor's channels or rows."""

    buffer: str  # Name of the memory that holds it.
    shape: Shape  # Its logical shape.
    offset: int  # Position of the first element, in elements.
    strides: tuple[int, int, int, int]  # Distances in elements between images, channel blocks, rows and columns.
    lanes: int  # Channels per block; 1 for a row-major tensor, whose elements are floats.
    bytes: int  # Size of the whole buffer in bytes.
    owner: MemoryOwner = "device"  # Whether the buffer is in device memory, an input or output of the caller, or a constant.

    @property
    def is_row_major(self) -> bool:
        """Whether the tensor is NCHW in floats, without gaps."""
        return self.lanes == 1

    @property
    def image(self) -> tuple[int, int, int, int]:
        """Shape as N, C, H, W."""
        return image_shape(self.shape)

    def channels(self, first: int, count: int) -> "TensorView":
        """Return a view of `count` channels from `first` on; in a blocked tensor `first` is a multiple of the lanes."""
        n, _, h, w = self.image
        shape = (n, count) if len(self.shape) == 2 else (n, count, h, w)
        return replace(self, shape=shape, offset=self.offset + first // self.lanes * self.strides[1])

    def rows(self, first: int, count: int) -> "TensorView":
        """Return a view of `count` rows of an image from `first` on."""
        n, c, _, w = self.image
        return replace(self, shape=(n, c, count, w), offset=self.offset + first * self.strides[2])

    def reshape(self, shape: Shape) -> "TensorView":
        """Return a view of the same elements with another shape; a blocked tensor must have one pixel per image in both shapes."""
        if self.is_row_major:
            return row_major_view(self.buffer, shape, self.owner)
        return replace(self, shape=shape)


def row_major_view(buffer: str, shape: Shape, owner: MemoryOwner = "device") -> TensorView:
    """Return a tensor of floats in row-major order; for rank 2 and 4 its strides are those of N, C, H, W."""
    strides = (0, 1, 0, 0)
    if len(shape) in (2, 4):
        _, c, h, w = image_shape(shape)
        strides = (c * h * w, h * w, w, 1)
    return TensorView(buffer, shape, 0, strides, 1, prod(shape) * 4, owner)


def image_shape(shape: Shape) -> tuple[int, int, int, int]:
    """Return N, C, H, W of a shape of rank 4, or of rank 2 as images of one pixel."""
    if len(shape) == 2:
        return shape[0], shape[1], 1, 1
    n, c, h, w = shape
    return n, c, h, w


Size = tuple[int, ...]
Defines = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class TensorArgument:
    """A tensor argument: pointer, offset and strides, or pointer and offset alone."""

    view: TensorView  # Memory, shape and layout.
    written: bool = False  # Whether the kernel writes it.
    without_strides: bool = False  # Whether the kernel takes no strides.
    image: bool = False  # Whether the kernel reads it as an image of one row.
    values: Array | None = field(default=None, compare=False)  # Elements of a constant in memory order.


@dataclass(frozen=True)
class Weights:
    """Constants that are copied to the device once."""

    values: Array  # The numbers.
    #: `store` for the storage type of tensors, `float` for 32-bit floats in any case, `int` for 32-bit integers.
    kind: Literal["store", "float", "int"] = "store"
    image: int = 0  # Exponent: the weights are read from an image of width 2 to this power; 0 for a buffer.


@dataclass(frozen=True)
class Zeros:
    """A vector of zeros, read in place of pixels outside an image."""

    elements: int  # Maximum number of elements read.


#: Argument of a kernel; plain ones are a vector of 1, 2, 4 or 8 integers, and a float.
Argument = TensorArgument | Weights | Zeros | tuple[int, ...] | float


@dataclass(frozen=True)
class Launch:
    """One kernel over one grid."""

    kernel: str  # Name of the kernel, and of its file in `kernels`.
    node: str  # Name of the node that it computes in full or in part.
    defines: Defines  # Template parameters, as macros.
    arguments: tuple[Argument, ...]  # In the kernel's order.
    grid: Size  # Work-items with work, in each dimension.
    shape: str  # Shape that decides the time, in words, such as ``64x56x56->256x56x56 k1 s1``.
    macs: int = 0  # Multiply-accumulates.
    local: Size | None = None  # Work-group size that the grid is rounded up to; None for the driver's choice.
    merged: tuple[str, ...] = field(default=(), compare=False)  # Names of the ONNX nodes that this launch computes.

    @property
    def global_size(self) -> Size:
        """The grid, rounded up to whole work-groups."""
        if self.local is None:
            return self.grid
        return tuple(-(-grid_size // local_size) * local_size for grid_size, local_size in zip(self.grid, self.local, strict=True))

    def traffic(self, item_bytes: int) -> int:
        """Return the bytes moved if every input and weight is read and every result written once."""
        total = 0
        for argument in self.arguments:
            match argument:
                case TensorArgument(view):
                    elements = (
                        prod(view.shape)
                        if view.is_row_major
                        else -(-view.image[1] // view.lanes) * view.lanes * prod(view.image) // view.image[1]
                    )
                    total += elements * (4 if view.is_row_major else item_bytes)
                case Weights(values, kind):
                    total += values.size * (item_bytes if kind == "store" else 4)
        return total

    def with_legal_local(self, limit: int, sizes: Size) -> "Launch":
        """Return the launch with a work-group within the limits of device and kernel.

        The last dimension is unchanged, because its work-items share their sums.
        """
        if self.local is None:
            return self
        local = [min(size, maximum) for size, maximum in zip(self.local, sizes, strict=False)]
        while prod(local) > limit and max(local[:2]) > 1:
            longest = local.index(max(local[:2]))
            local[longest] //= 2
        return self if tuple(local) == self.local else replace(self, local=tuple(local))

    def without_images(self) -> "Launch":
        """Return the launch with buffers in place of images."""
        defines = tuple((name, "0" if name == "XIMAGE" else value) for name, value in self.defines)
        arguments = tuple(replace(a, image=False) if isinstance(a, TensorArgument) else a for a in self.arguments)
        return replace(self, defines=defines, arguments=arguments)


def intermediates(launches: Sequence[Launch]) -> Lifetimes:
    """Return the tensors between launches in this order, with their lifetimes; slices of a tensor share its name."""
    sizes: dict[str, int] = {}
    steps: dict[str, list[int]] = {}
    for i, launch in enumerate(launches):
        for argument in launch.arguments:
            if isinstance(argument, TensorArgument) and argument.view.owner == "device":
                view = argument.view
                sizes[view.buffer] = max(view.bytes, sizes.get(view.buffer, 0))
                steps.setdefault(view.buffer, []).append(i)
    return Lifetimes([Lifetime(name, size, tuple(sorted(set(steps[name])))) for name, size in sizes.items()])


class Arenas:
    """Device memory shared by all subgraphs of one in-order queue, across bundles.

    No subgraph needs the contents after the next subgraph starts, and an
    in-order queue never runs two at once.

    Args:
        context: The `pyopencl.Context`.
    """

    def __init__(self, context: Any) -> None:
        self._context = context
        self._buffers: list[Any] = []

    def allocate(self, sizes: Sequence[int]) -> list[Any]:
        """Return buffers of at least these sizes; a smaller buffer is replaced, and lives as long as its users."""
        import pyopencl as cl

        for i, size in enumerate(sizes):
            if i == len(self._buffers):
                self._buffers.append(cl.Buffer(self._context, cl.mem_flags.READ_WRITE, size))
            elif self._buffers[i].size < size:
                self._buffers[i] = cl.Buffer(self._context, cl.mem_flags.READ_WRITE, size)
        return self._buffers[: len(sizes)]

    def clear(self) -> None:
        """Drop all buffers; needed because a driver may report missing memory only at the first launch."""
        self._buffers.clear()
