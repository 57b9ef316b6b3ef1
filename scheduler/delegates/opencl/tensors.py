"""Where a tensor lies in device memory: blocks of channels, or plain NCHW."""

from dataclasses import dataclass, replace
from math import prod
from typing import Literal

Shape = tuple[int, ...]
#: Lanes of an image's texel.
TEXEL = 4

Where = Literal["device", "input", "output", "constant"]


@dataclass(frozen=True)
class Blocking:
    """How blocked tensors are laid out on one device."""

    lanes: int  # Channels of a block, which lie side by side: the 4 of PHWC4 (paper 000), or 8 or 16 where registers are that wide.
    #: Whether the blocks of one pixel lie side by side (N, H, W, block, lane); otherwise each block is an image of its own (N, block, H, W,
    #: lane), as in PHWC4.
    blocks_inside: bool
    half: bool = False  # Whether activations and weights are stored in half precision.

    @property
    def item_bytes(self) -> int:
        """Bytes of an element of a blocked tensor."""
        return 2 if self.half else 4

    def blocks(self, channels: int) -> int:
        """Blocks that hold `channels`; lanes of the last one may be padding."""
        return -(-channels // self.lanes)

    def blocked(self, buffer: str, shape: Shape) -> "TensorView":
        """A blocked tensor of shape N×C or N×C×H×W that fills a buffer."""
        n, c, h, w = image_shape(shape)
        blocks = self.blocks(c)
        if self.blocks_inside:
            strides = (h * w * blocks * self.lanes, self.lanes, w * blocks * self.lanes, blocks * self.lanes)
        else:
            strides = (blocks * h * w * self.lanes, h * w * self.lanes, w * self.lanes, self.lanes)
        return TensorView(buffer, shape, 0, strides, self.lanes, n * h * w * blocks * self.lanes * self.item_bytes)


@dataclass(frozen=True)
class TensorView:
    """A tensor, or a slice of the channels or rows of one."""

    buffer: str  # Name of the memory that it lies in.
    shape: Shape  # Its logical shape.
    offset: int  # First element.
    strides: tuple[int, int, int, int]  # Distance in elements between images, channel blocks, rows and columns.
    lanes: int  # Channels of a block; 1 for a plain tensor, whose elements are floats.
    bytes: int  # Size of the whole buffer.
    where: Where = "device"  # Whether the buffer is the device's own, or the caller's.

    @property
    def plain(self) -> bool:
        """Whether it is NCHW in floats, without gaps."""
        return self.lanes == 1

    @property
    def image(self) -> tuple[int, int, int, int]:
        """N, C, H, W."""
        return image_shape(self.shape)

    def channels(self, first: int, count: int) -> "TensorView":
        """Some of its channels; of a blocked tensor, `first` is a multiple of the lanes."""
        n, _, h, w = self.image
        shape = (n, count) if len(self.shape) == 2 else (n, count, h, w)
        return replace(self, shape=shape, offset=self.offset + first // self.lanes * self.strides[1])

    def rows(self, first: int, count: int) -> "TensorView":
        """Some rows of an image, which stay where they are."""
        n, c, _, w = self.image
        return replace(self, shape=(n, c, count, w), offset=self.offset + first * self.strides[2])

    def reshaped(self, shape: Shape) -> "TensorView":
        """The same elements under another shape; plain, or of one pixel an image both before and after."""
        if self.plain:
            return plain(self.buffer, shape, self.where)
        return replace(self, shape=shape)


def plain(buffer: str, shape: Shape, where: Where = "device") -> TensorView:
    """A tensor in row-major order, in floats; of rank 2 and 4 its strides are those of N, C, H, W."""
    strides = (0, 1, 0, 0)
    if len(shape) in (2, 4):
        _, c, h, w = image_shape(shape)
        strides = (c * h * w, h * w, w, 1)
    return TensorView(buffer, shape, 0, strides, 1, prod(shape) * 4, where)


def image_shape(shape: Shape) -> tuple[int, int, int, int]:
    """N, C, H, W of a shape of rank 4, or of rank 2 as images of one pixel."""
    if len(shape) == 2:
        return shape[0], shape[1], 1, 1
    n, c, h, w = shape
    return n, c, h, w
