"""A random network under construction, with the shapes of all its operators."""

from dataclasses import dataclass, field

import numpy as np

from predictors.graph import Op, OpGraph
from predictors.operators import kind_of
from predictors.shapes import Attr, Shape

#: Activations of current networks, and their probabilities.
ACTIVATIONS = ("relu", "relu6", "silu", "hard_swish", "gelu", "leaky_relu")
_OFTEN = (0.45, 0.15, 0.15, 0.15, 0.05, 0.05)

#: Attributes of activations.
_SETTINGS: dict[str, dict[str, Attr]] = {"gelu": {"approximate": "none"}, "leaky_relu": {"slope": 0.1}}

_NORM: dict[str, Attr] = {"eps": 1e-5, "momentum": 0.1, "affine": True}


@dataclass
class Drawing:
    """Operators so far."""

    rng: np.random.Generator  # Source of randomness.
    activation: str  # Default activation of the network.
    ops: list[Op] = field(default_factory=list)
    shapes: dict[str, Shape] = field(default_factory=dict)  # Output shapes by operator.

    @classmethod
    def of(cls, rng: np.random.Generator, size: int) -> "Drawing":
        """Begin with a three-channel image and a random activation."""
        drawing = cls(rng, str(rng.choice(ACTIVATIONS, p=_OFTEN)))
        drawing.add("input", shape=(1, 3, size, size))
        return drawing

    @property
    def last(self) -> str:
        """The newest operator."""
        return self.ops[-1].name

    def channels(self, name: str) -> int:
        """Channels of a result."""
        return self.shapes[name][1]

    def size(self, name: str) -> int:
        """Rows of a result."""
        return self.shapes[name][2]

    def add(self, kind: str, *inputs: str, **attrs: Attr) -> str:
        """Add an operator; returns its name."""
        name = "x" if kind == "input" else f"{kind}_{len(self.ops)}"
        self.shapes[name] = kind_of(kind).shape([self.shapes[name_read] for name_read in inputs], attrs)
        self.ops.append(Op(name, kind, inputs, attrs))
        return name

    def conv(
        self, x: str, out: int, kernel: int = 1, stride: int = 1, groups: int = 1, bias: bool = False, across: int | None = None
    ) -> str:
        """Add a convolution with same padding; `across` is the kernel's width if it is not square."""
        window = (kernel, kernel if across is None else across)
        rows, columns = window[0] // 2, window[1] // 2
        return self.add(
            "conv", x, out_channels=out, kernel=window, stride=(stride, stride), padding=(rows, columns, rows, columns),
            dilation=(1, 1), groups=groups, bias=bias,
        )  # fmt: skip

    def act(self, x: str, kind: str | None = None) -> str:
        """Add the network's activation, or another."""
        kind = kind or self.activation
        return self.add(kind, x, **_SETTINGS.get(kind, {}))

    def norm(self, x: str) -> str:
        """Batch normalisation."""
        return self.add("batch_norm", x, **_NORM)

    def unit(self, x: str, out: int, kernel: int = 1, stride: int = 1, groups: int = 1, act: bool = True) -> str:
        """Add convolution, normalisation and, unless disabled, activation."""
        x = self.norm(self.conv(x, out, kernel, stride, groups))
        return self.act(x) if act else x

    def depthwise(self, x: str, kernel: int, stride: int = 1, act: bool = True) -> str:
        """Like `unit`, depthwise."""
        return self.unit(x, self.channels(x), kernel, stride, self.channels(x), act)

    def squeeze(self, x: str) -> str:
        """Add squeeze and excitation."""
        channels = self.channels(x)
        gate = self.add("global_avg_pool", x, keepdims=True)
        gate = self.act(self.conv(gate, max(8, channels // int(self.rng.choice([4, 8, 16, 24]))), bias=True), "relu")
        gate = self.act(self.conv(gate, channels, bias=True), str(self.rng.choice(["sigmoid", "hard_sigmoid"])))
        return self.add("mul", x, gate)

    def pool(self, x: str, kind: str = "max_pool", kernel: int = 3, stride: int = 2) -> str:
        """A pooling window."""
        edge = kernel // 2 if kernel % 2 else 0
        settings: dict[str, Attr] = {"dilation": (1, 1)} if kind == "max_pool" else {"count_include_pad": True}
        return self.add(kind, x, kernel=(kernel, kernel), stride=(stride, stride), padding=(edge,) * 4, ceil_mode=False, **settings)

    def width(self, low: int, high: int) -> int:
        """Draw a number of channels: usually a multiple of 8, log-uniformly distributed."""
        value = float(np.exp(self.rng.uniform(np.log(low), np.log(high))))
        step = int(self.rng.choice([1, 2, 4, 8, 16, 32], p=[0.03, 0.07, 0.15, 0.35, 0.25, 0.15]))
        return max(low, round(value / step) * step)

    def chance(self, share: float) -> bool:
        """True with this probability."""
        return bool(self.rng.random() < share)

    def finish(self, name: str) -> OpGraph:
        """Add global average pooling and a classifier; returns the network."""
        x = self.add("global_avg_pool", self.last, keepdims=False)
        return OpGraph.build(name, self.ops, self.add("linear", x, out_features=int(self.rng.choice([10, 100, 1000])), bias=True))
