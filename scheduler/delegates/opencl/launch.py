"""Kernel launches as data: which kernel, with which constants and arguments, over which grid."""

from dataclasses import dataclass, field, replace
from math import prod
from typing import Literal

from scheduler.delegates.base import Array
from scheduler.delegates.opencl.tensors import TensorView

Size = tuple[int, ...]
Defines = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class TensorArgument:
    """A tensor argument: pointer, offset and strides, or the pointer alone."""

    view: TensorView  # Where it lies.
    written: bool = False  # Whether the kernel writes it.
    bare: bool = False  # Whether the kernel takes the pointer alone.
    image: bool = False  # Whether the kernel reads it as an image of one row.
    values: Array | None = field(default=None, compare=False)  # Its elements as they lie in memory, where it is constant.


@dataclass(frozen=True)
class Weights:
    """Constants that are copied to the device once."""

    values: Array  # The numbers.
    #: `store` for the tensors' storage type, `float` for float whatever that is, `int` for 32-bit integers.
    kind: Literal["store", "float", "int"] = "store"
    image: int = 0  # Power of 2 of the width of the image that they are read from; 0 for a buffer.


@dataclass(frozen=True)
class Zeros:
    """A vector of zeros, which pixels outside an image are read from."""

    elements: int  # How many are read at most.


@dataclass(frozen=True)
class Ints:
    """An integer, or a vector of 2, 4 or 8 integers."""

    values: tuple[int, ...]


@dataclass(frozen=True)
class Float:
    """A float."""

    value: float


Argument = TensorArgument | Weights | Zeros | Ints | Float


@dataclass(frozen=True)
class Launch:
    """One kernel over one grid."""

    kernel: str  # Name of the kernel, and of its file in `kernels`.
    node: str  # Name of the node that it computes, or part of it.
    defines: Defines  # Template parameters, as macros.
    arguments: tuple[Argument, ...]  # In the kernel's order.
    grid: Size  # Work-items in each dimension that have work.
    shape: str  # The shape that decides its time, in words, such as ``64x56x56->256x56x56 k1 s1``.
    macs: int = 0  # Multiply-accumulates.
    local: Size | None = None  # Work-group size; None for the driver's choice. The grid is rounded up to it.
    merged: tuple[str, ...] = field(default=(), compare=False)  # Names of the ONNX nodes that are computed with it.

    @property
    def global_size(self) -> Size:
        """The grid, rounded up to whole work-groups."""
        if self.local is None:
            return self.grid
        return tuple(-(-g // s) * s for g, s in zip(self.grid, self.local, strict=True))

    @property
    def work_items(self) -> int:
        """Work-items that have work."""
        return prod(self.grid)

    def traffic(self, item_bytes: int) -> int:
        """Bytes that it moves if it reads every input and weight and writes every result once."""
        total = 0
        for argument in self.arguments:
            match argument:
                case TensorArgument(view):
                    elements = (
                        prod(view.shape) if view.plain else -(-view.image[1] // view.lanes) * view.lanes * prod(view.image) // view.image[1]
                    )
                    total += elements * (4 if view.plain else item_bytes)
                case Weights(values, kind):
                    total += values.size * (item_bytes if kind == "store" else 4)
        return total

    def within(self, limit: int, sizes: Size) -> "Launch":
        """The same with a work-group that a device or a kernel allows.

        Its last dimension stays: work-items that share their sums lie there.
        """
        if self.local is None:
            return self
        local = [min(size, most) for size, most in zip(self.local, sizes, strict=False)]
        while prod(local) > limit and max(local[:2]) > 1:
            longest = local.index(max(local[:2]))
            local[longest] //= 2
        return self if tuple(local) == self.local else replace(self, local=tuple(local))

    def in_buffers(self) -> "Launch":
        """The same with its tensors read from buffers in place of images."""
        defines = tuple((name, "0" if name == "XIMAGE" else value) for name, value in self.defines)
        arguments = tuple(replace(a, image=False) if isinstance(a, TensorArgument) else a for a in self.arguments)
        return replace(self, defines=defines, arguments=arguments)

    def buffers(self) -> tuple[set[str], set[str]]:
        """Device buffers that it reads and that it writes."""
        tensors = [a for a in self.arguments if isinstance(a, TensorArgument) and a.view.where == "device"]
        return {t.view.buffer for t in tensors if not t.written}, {t.view.buffer for t in tensors if t.written}
