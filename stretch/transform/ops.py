"""A torch module for every kind of operator, so that a branched model can be printed and traced back."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from predictors.graph import Op
from predictors.shapes import Attr, Shape, integer, ints, number


class Add(nn.Module):
    """Sum of its inputs."""

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        """Add the inputs from left to right."""
        total = tensors[0]
        for tensor in tensors[1:]:
            total = total + tensor
        return total


class Mul(nn.Module):
    """Product of two inputs, element by element."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """Multiply the inputs."""
        return a * b


class Concat(nn.Module):
    """Inputs side by side along channels."""

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        """Concatenate the inputs."""
        return torch.cat(tensors, dim=1)


class ChannelSlice(nn.Module):
    """Channels `start` up to `stop` of its input."""

    def __init__(self, start: int, stop: int) -> None:
        super().__init__()
        self.start, self.stop = start, stop

    def extra_repr(self) -> str:
        """The range."""
        return f"{self.start}:{self.stop}"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Cut the channels out."""
        return x[:, self.start : self.stop]


class ChannelShuffle(nn.Module):
    """Channels of `groups` groups interleaved: the first of each group, then the second of each, and so on."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups

    def extra_repr(self) -> str:
        """Number of groups."""
        return f"groups={self.groups}"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Interleave the channels."""
        n, c, h, w = x.shape
        return x.view(n, self.groups, c // self.groups, h, w).transpose(1, 2).reshape(n, c, h, w)


class Unflatten(nn.Module):
    """A vector as a map of one pixel."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """N×C to N×C×1×1."""
        return x[:, :, None, None]


class ChannelNorm(nn.Module):
    """Layer normalisation over the channels of each pixel."""

    def __init__(self, channels: int, eps: float, affine: bool) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(channels)) if affine else None
        self.bias = nn.Parameter(torch.zeros(channels)) if affine else None
        self.channels = channels

    def extra_repr(self) -> str:
        """Channels and epsilon."""
        return f"{self.channels}, eps={self.eps}, affine={self.weight is not None}"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise along dimension 1."""
        last = F.layer_norm(x.movedim(1, -1), (self.channels,), self.weight, self.bias, self.eps)
        return last.movedim(-1, 1)


class ChannelScale(nn.Module):
    """Each channel times a learned number."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scale along dimension 1."""
        return x * self.weight.reshape(-1, *[1] * (x.dim() - 2))


class ChannelShift(nn.Module):
    """Each channel plus a learned number."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shift along dimension 1."""
        return x + self.bias.reshape(-1, *[1] * (x.dim() - 2))


class AddScalar(nn.Module):
    """Its input plus a number."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def extra_repr(self) -> str:
        """The number."""
        return f"{self.value}"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add the number."""
        return x + self.value


class MulScalar(nn.Module):
    """Its input times a number."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def extra_repr(self) -> str:
        """The number."""
        return f"{self.value}"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply by the number."""
        return x * self.value


class GlobalPool(nn.Module):
    """Mean or maximum over height and width; `kind` is the operator's."""

    def __init__(self, kind: str, keepdims: bool) -> None:
        super().__init__()
        self.kind, self.keepdims = kind, keepdims

    def extra_repr(self) -> str:
        """Kind and shape."""
        return f"{self.kind}, keepdims={self.keepdims}"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Pool."""
        pool = F.adaptive_avg_pool2d if self.kind == "global_avg_pool" else F.adaptive_max_pool2d
        pooled = pool(x, 1)
        return pooled if self.keepdims else pooled.flatten(1)


class PaddedConv2d(nn.Conv2d):
    """A convolution whose padding differs between sides; `pads` is (top, left, bottom, right)."""

    def __init__(self, *args: Any, pads: tuple[int, ...], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.pads = pads

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Pad, then convolve."""
        top, left, bottom, right = self.pads
        return super().forward(F.pad(input, (left, right, top, bottom)))


class StochasticDepth(nn.Module):
    """Drops its whole input in training, per sample (``row``) or per batch (``batch``)."""

    def __init__(self, p: float, mode: str) -> None:
        super().__init__()
        self.p, self.mode = p, mode

    def extra_repr(self) -> str:
        """Probability and mode."""
        return f"p={self.p}, mode={self.mode}"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Identity in evaluation; in training keeps the expectation."""
        if not self.training or self.p == 0:
            return x
        size = (x.shape[0] if self.mode == "row" else 1, *[1] * (x.dim() - 1))
        keep = torch.empty(size, dtype=x.dtype, device=x.device).bernoulli_(1 - self.p)
        return x * (keep / (1 - self.p) if self.p < 1 else keep)


Attrs = Mapping[str, Attr]


def _conv(ins: list[Shape], a: Attrs) -> nn.Module:
    top, left, bottom, right = ints(a, "padding")
    common: dict[str, Any] = {
        "in_channels": ins[0][1],
        "out_channels": integer(a, "out_channels"),
        "kernel_size": ints(a, "kernel"),
        "stride": ints(a, "stride"),
        "dilation": ints(a, "dilation"),
        "groups": integer(a, "groups"),
        "bias": bool(a["bias"]),
    }
    if (top, left) == (bottom, right):
        return nn.Conv2d(**common, padding=(top, left))
    return PaddedConv2d(**common, pads=(top, left, bottom, right))


def _pad(ins: list[Shape], a: Attrs) -> nn.Module:
    top, left, bottom, right = ints(a, "padding")
    return nn.ZeroPad2d((left, right, top, bottom))


def _max_pool(ins: list[Shape], a: Attrs) -> nn.Module:
    return nn.MaxPool2d(ints(a, "kernel"), ints(a, "stride"), ints(a, "padding")[:2], ints(a, "dilation"), ceil_mode=bool(a["ceil_mode"]))


def _avg_pool(ins: list[Shape], a: Attrs) -> nn.Module:
    return nn.AvgPool2d(
        ints(a, "kernel"),
        ints(a, "stride"),
        ints(a, "padding")[:2],
        ceil_mode=bool(a["ceil_mode"]),
        count_include_pad=bool(a["count_include_pad"]),
    )


def _batch_norm(ins: list[Shape], a: Attrs) -> nn.Module:
    norm = nn.BatchNorm1d if len(ins[0]) == 2 else nn.BatchNorm2d
    return norm(ins[0][1], eps=number(a, "eps"), momentum=number(a, "momentum"), affine=bool(a["affine"]))


def _upsample(ins: list[Shape], a: Attrs) -> nn.Module:
    down, across = ints(a, "scale")
    return nn.Upsample(scale_factor=(float(down), float(across)), mode="nearest")


_MAKERS: dict[str, Callable[[list[Shape], Attrs], nn.Module]] = {
    "conv": _conv,
    "linear": lambda ins, a: nn.Linear(ins[0][-1], integer(a, "out_features"), bias=bool(a["bias"])),
    "batch_norm": _batch_norm,
    "relu": lambda ins, a: nn.ReLU(),
    "relu6": lambda ins, a: nn.ReLU6(),
    "hard_swish": lambda ins, a: nn.Hardswish(),
    "hard_sigmoid": lambda ins, a: nn.Hardsigmoid(),
    "silu": lambda ins, a: nn.SiLU(),
    "sigmoid": lambda ins, a: nn.Sigmoid(),
    "tanh": lambda ins, a: nn.Tanh(),
    "gelu": lambda ins, a: nn.GELU(approximate=str(a["approximate"])),
    "elu": lambda ins, a: nn.ELU(number(a, "alpha")),
    "leaky_relu": lambda ins, a: nn.LeakyReLU(number(a, "slope")),
    "mish": lambda ins, a: nn.Mish(),
    "prelu": lambda ins, a: nn.PReLU(ins[0][1]),
    "scale": lambda ins, a: ChannelScale(ins[0][1]),
    "shift": lambda ins, a: ChannelShift(ins[0][1]),
    "add_scalar": lambda ins, a: AddScalar(number(a, "value")),
    "mul_scalar": lambda ins, a: MulScalar(number(a, "value")),
    "layer_norm": lambda ins, a: ChannelNorm(ins[0][1], number(a, "eps"), bool(a["affine"])),
    "softmax": lambda ins, a: nn.Softmax(dim=1),
    "log_softmax": lambda ins, a: nn.LogSoftmax(dim=1),
    "add": lambda ins, a: Add(),
    "mul": lambda ins, a: Mul(),
    "concat": lambda ins, a: Concat(),
    "max_pool": _max_pool,
    "avg_pool": _avg_pool,
    "global_avg_pool": lambda ins, a: GlobalPool("global_avg_pool", bool(a["keepdims"])),
    "global_max_pool": lambda ins, a: GlobalPool("global_max_pool", bool(a["keepdims"])),
    "flatten": lambda ins, a: nn.Flatten(),
    "unflatten": lambda ins, a: Unflatten(),
    "pad": _pad,
    "slice": lambda ins, a: ChannelSlice(integer(a, "start"), integer(a, "stop")),
    "channel_shuffle": lambda ins, a: ChannelShuffle(integer(a, "groups")),
    "upsample": _upsample,
    "dropout": lambda ins, a: nn.Dropout(number(a, "p")),
    "stochastic_depth": lambda ins, a: StochasticDepth(number(a, "p"), str(a["mode"])),
    "identity": lambda ins, a: nn.Identity(),
}


def make_module(op: Op, input_shapes: list[Shape]) -> nn.Module:
    """The torch module that computes `op` on inputs of these shapes; its weights are torch's initial ones."""
    return _MAKERS[op.kind](input_shapes, op.attrs)
