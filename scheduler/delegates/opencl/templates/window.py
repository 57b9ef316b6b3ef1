"""What is known of a convolution before its kernel is chosen."""

from dataclasses import dataclass

import numpy as np

from scheduler.delegates.base import Array
from scheduler.delegates.opencl.fuse import FusedActivation
from scheduler.delegates.opencl.graph import KernelNode
from scheduler.delegates.opencl.launch import TensorArgument
from scheduler.delegates.opencl.lowering import KernelLowering, UnsupportedError, as_float
from scheduler.delegates.opencl.templates.parts import activation


@dataclass(frozen=True)
class Convolution:
    """A convolution with all that is merged into it."""

    node: KernelNode  # The node.
    x: str  # Name of the input.
    weight: Array  # M×(C/groups)×KH×KW.
    bias: Array  # M numbers.
    residual: str | None  # Name of the tensor that is added, or None.
    residual_last: bool  # Whether it is added after the activation.
    activation: FusedActivation  # At the end.
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
        """Multiply-accumulates."""
        return self.pixels * int(self.weight.size)

    @property
    def shape(self) -> str:
        """Everything that decides its time, in words."""
        n, c, h, w = self.input
        _, m, oh, ow = self.output
        words = f"{n}x{c}x{h}x{w}->{m}x{oh}x{ow} k{self.kernel[0]}x{self.kernel[1]} s{self.stride[0]}x{self.stride[1]}"
        if self.dilation != (1, 1):
            words += f" d{self.dilation[0]}x{self.dilation[1]}"
        return words + (f" g{self.groups}" if self.groups > 1 else "")

    def residual_argument(self, state: KernelLowering) -> tuple[TensorArgument, ...]:
        """The tensor that is added, if there is one."""
        return () if self.residual is None else (TensorArgument(state.blocked(self.residual)),)


def read_convolution(state: KernelLowering, node: KernelNode) -> Convolution:
    """The convolution of a node."""
    x = node.inputs[0]
    if len(state.shape(x)) != 4:
        raise UnsupportedError(f"its input has rank {len(state.shape(x))}, convolutions are over images")
    if node.attrs.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        raise UnsupportedError("auto_pad is not computed, write the pads out")
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
    """The third input of a node, or zeros."""
    if len(node.inputs) > 2 and node.inputs[2]:
        return np.ascontiguousarray(np.broadcast_to(as_float(state.constant(node.inputs[2])).reshape(-1), (channels,)))
    return np.zeros(channels, np.float32)


def pad_to(values: Array, length: int) -> Array:
    """A vector with zeros appended."""
    padded = np.zeros(length, np.float32)
    padded[: len(values)] = values
    return padded
