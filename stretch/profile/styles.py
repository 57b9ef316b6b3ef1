"""Random networks in the styles of real ones, with similar shapes and sequences of kernels.

Kernels timed alone would include layout changes that networks avoid, so
whole networks of small depth and any width are measured.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from predictors.graph import Op, OpGraph
from predictors.operators import kind_of
from predictors.registry import Registry
from predictors.shapes import Attr, Shape

#: Activations of current networks, and their probabilities.
ACTIVATIONS = ("relu", "relu6", "silu", "hard_swish", "gelu", "leaky_relu")
_ACTIVATION_SHARES = (0.45, 0.15, 0.15, 0.15, 0.05, 0.05)

#: Attributes of activations.
_SETTINGS: dict[str, dict[str, Attr]] = {"gelu": {"approximate": "none"}, "leaky_relu": {"slope": 0.1}}

_NORM: dict[str, Attr] = {"eps": 1e-5, "momentum": 0.1, "affine": True}


@dataclass
class RandomNetwork:
    """A random network under construction."""

    rng: np.random.Generator  # Source of randomness.
    activation: str  # Default activation of the network.
    ops: list[Op] = field(default_factory=list)
    shapes: dict[str, Shape] = field(default_factory=dict)  # Output shapes by operator.

    @classmethod
    def of(cls, rng: np.random.Generator, size: int) -> "RandomNetwork":
        """Return a network with a three-channel image as input and a random activation."""
        drawing = cls(rng, str(rng.choice(ACTIVATIONS, p=_ACTIVATION_SHARES)))
        drawing.add("input", shape=(1, 3, size, size))
        return drawing

    @property
    def last(self) -> str:
        """Name of the last operator."""
        return self.ops[-1].name

    def channels(self, name: str) -> int:
        """Return the number of channels of an operator's output."""
        return self.shapes[name][1]

    def size(self, name: str) -> int:
        """Return the number of rows of an operator's output."""
        return self.shapes[name][2]

    def add(self, kind: str, *inputs: str, **attrs: Attr) -> str:
        """Add an operator and return its name, as all methods below do."""
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
        """Add the network's activation, or another kind."""
        kind = kind or self.activation
        return self.add(kind, x, **_SETTINGS.get(kind, {}))

    def norm(self, x: str) -> str:
        """Add batch normalisation."""
        return self.add("batch_norm", x, **_NORM)

    def unit(self, x: str, out: int, kernel: int = 1, stride: int = 1, groups: int = 1, act: bool = True) -> str:
        """Add convolution, normalisation and, unless disabled, activation."""
        x = self.norm(self.conv(x, out, kernel, stride, groups))
        return self.act(x) if act else x

    def depthwise(self, x: str, kernel: int, stride: int = 1, act: bool = True) -> str:
        """Add a depthwise `unit`."""
        return self.unit(x, self.channels(x), kernel, stride, self.channels(x), act)

    def squeeze(self, x: str) -> str:
        """Add squeeze and excitation."""
        channels = self.channels(x)
        gate = self.add("global_avg_pool", x, keepdims=True)
        gate = self.act(self.conv(gate, max(8, channels // int(self.rng.choice([4, 8, 16, 24]))), bias=True), "relu")
        gate = self.act(self.conv(gate, channels, bias=True), str(self.rng.choice(["sigmoid", "hard_sigmoid"])))
        return self.add("mul", x, gate)

    def pool(self, x: str, kind: str = "max_pool", kernel: int = 3, stride: int = 2) -> str:
        """Add pooling."""
        edge = kernel // 2 if kernel % 2 else 0
        settings: dict[str, Attr] = {"dilation": (1, 1)} if kind == "max_pool" else {"count_include_pad": True}
        return self.add(kind, x, kernel=(kernel, kernel), stride=(stride, stride), padding=(edge,) * 4, ceil_mode=False, **settings)

    def width(self, low: int, high: int) -> int:
        """Draw a number of channels: usually a multiple of 8, log-uniformly distributed."""
        value = float(np.exp(self.rng.uniform(np.log(low), np.log(high))))
        step = int(self.rng.choice([1, 2, 4, 8, 16, 32], p=[0.03, 0.07, 0.15, 0.35, 0.25, 0.15]))
        return max(low, round(value / step) * step)

    def chance(self, share: float) -> bool:
        """Return True with this probability."""
        return bool(self.rng.random() < share)

    def finish(self, name: str) -> OpGraph:
        """Add global average pooling and a classifier, and return the network."""
        x = self.add("global_avg_pool", self.last, keepdims=False)
        return OpGraph.build(name, self.ops, self.add("linear", x, out_features=int(self.rng.choice([10, 100, 1000])), bias=True))


#: Draws a stage in a style, from an input tensor, a width and a stride, and returns its output.
Stage = Callable[[RandomNetwork, str, int, int], str]

styles: Registry[Stage] = Registry("style")

#: Input sizes and their probabilities; most current networks use 224.
_SIZES = (96, 128, 160, 192, 224, 256, 288)
_SHARES = (0.05, 0.1, 0.1, 0.1, 0.45, 0.15, 0.05)

#: Maximum multiply-accumulates of a network with images of these sizes, so that a run takes a fraction of a second on a phone.
MAX_MACS = 2.5e9


def draw(style: str, seed: int, scale: int = 1) -> OpGraph:
    """Draw a network of a style; equal arguments yield equal networks.

    Args:
        scale: Factor on the sides of images, for fast processors whose kernels on usual images are too short.
    """
    name = f"{style}-{seed:05d}"
    attempt = 0
    while True:
        graph = _draw(style, name, np.random.default_rng([sum(style.encode()), seed, attempt]), scale)
        if graph.macs <= MAX_MACS * scale**2:
            return graph
        attempt += 1


def _draw(style: str, name: str, rng: np.random.Generator, scale: int) -> OpGraph:
    drawing = RandomNetwork.of(rng, scale * int(rng.choice(_SIZES, p=_SHARES)))
    x = _stem(drawing)
    first = int(rng.integers(0, 4))
    width = drawing.width(16, 96)
    mixed = style == "mixed"
    for stage in range(4):
        small = drawing.size(x) <= 7
        if stage < first and not small:
            # skip the sizes of early stages, so that each network covers some sizes well
            x = drawing.pool(x) if drawing.chance(0.7) else drawing.unit(x, drawing.width(16, 64), 1, 2)
            width = int(width * rng.uniform(1.3, 2))
            continue
        chosen = str(rng.choice([other for other in styles if other != style])) if mixed else style
        x = styles.get(chosen)(drawing, x, width, 1 if small else 2)
        width = min(1024, int(width * rng.uniform(1.3, 2.2)))
        if drawing.chance(0.25):
            break
    if drawing.chance(0.35):
        x = drawing.unit(x, drawing.width(256, 1536))
    return drawing.finish(name)


def _stem(drawing: RandomNetwork) -> str:
    width, kernel = drawing.width(12, 72), int(drawing.rng.choice([3, 3, 5, 7, 4]))
    if kernel == 4:
        return drawing.conv(drawing.last, width, 4, 4, bias=True)
    return drawing.unit(drawing.last, width, kernel, 2)


@styles.register("plain")
def _plain(drawing: RandomNetwork, x: str, width: int, stride: int) -> str:
    for number in range(int(drawing.rng.integers(1, 4))):
        kernel = int(drawing.rng.choice([1, 3, 3, 3, 5, 7], p=[0.2, 0.2, 0.2, 0.2, 0.1, 0.1]))
        out = drawing.width(max(16, width // 2), min(768, width * 2))
        if drawing.chance(0.3):
            x = drawing.act(drawing.conv(x, out, kernel, stride if number == 0 else 1, bias=True))
        else:
            x = drawing.unit(x, out, kernel, stride if number == 0 else 1)
    return drawing.pool(x, kernel=int(drawing.rng.choice([2, 3])), stride=stride) if drawing.chance(0.3) and drawing.size(x) > 7 else x


def _shortcut(drawing: RandomNetwork, x: str, y: str, stride: int) -> str:
    """Add the sum of a block's output and its shortcut."""
    if stride > 1 or drawing.channels(x) != drawing.channels(y):
        if drawing.chance(0.3) and stride > 1:
            x = drawing.pool(x, "avg_pool", 2, 2)
            stride = 1
        x = drawing.norm(drawing.conv(x, drawing.channels(y), 1, stride))
    return drawing.add("add", y, x) if drawing.shapes[x] == drawing.shapes[y] else y


@styles.register("residual")
def _residual(drawing: RandomNetwork, x: str, width: int, stride: int) -> str:
    out, kernel = drawing.width(width // 2 + 8, min(640, width * 2)), int(drawing.rng.choice([3, 3, 3, 5]))
    for number in range(int(drawing.rng.integers(1, 4))):
        step = stride if number == 0 else 1
        y = drawing.unit(x, out, kernel, step)
        y = drawing.unit(y, out, kernel, act=False)
        x = drawing.act(_shortcut(drawing, x, y, step))
    return x


@styles.register("bottleneck")
def _bottleneck(drawing: RandomNetwork, x: str, width: int, stride: int) -> str:
    inner, growth = drawing.width(width // 2 + 8, min(512, width * 2)), int(drawing.rng.choice([1, 2, 4]))
    per = int(drawing.rng.choice([0, 0, 4, 8, 16, 24, 32, 48]))
    if per:
        inner = max(per, inner // per * per)
    gated = drawing.chance(0.25)
    for number in range(int(drawing.rng.integers(1, 4))):
        step = stride if number == 0 else 1
        y = drawing.unit(x, inner)
        y = drawing.unit(y, inner, 3, step, inner // per if per else 1)
        if gated:
            y = drawing.squeeze(y)
        y = drawing.unit(y, inner * growth, act=False)
        x = drawing.act(_shortcut(drawing, x, y, step))
    return x


@styles.register("inverted")
def _inverted(drawing: RandomNetwork, x: str, width: int, stride: int) -> str:
    out, gated = drawing.width(max(12, width // 3), min(320, width)), drawing.chance(0.4)
    for number in range(int(drawing.rng.integers(1, 5))):
        step = stride if number == 0 else 1
        kernel = int(drawing.rng.choice([3, 5, 7], p=[0.55, 0.35, 0.1]))
        y = drawing.unit(x, min(1536, drawing.channels(x) * int(drawing.rng.choice([1, 2, 3, 4, 6]))))
        y = drawing.depthwise(y, kernel, step)
        if gated:
            y = drawing.squeeze(y)
        y = drawing.unit(y, out, act=False)
        x = drawing.add("add", y, x) if drawing.shapes[x] == drawing.shapes[y] else y
    return x


@styles.register("separable")
def _separable(drawing: RandomNetwork, x: str, width: int, stride: int) -> str:
    for number in range(int(drawing.rng.integers(1, 4))):
        x = drawing.depthwise(x, int(drawing.rng.choice([3, 3, 5, 7])), stride if number == 0 else 1, act=drawing.chance(0.8))
        if drawing.chance(0.2):
            x = drawing.squeeze(x)
        x = drawing.unit(x, drawing.width(max(16, width // 2), min(1024, width * 2)))
    return x


@styles.register("dense")
def _dense(drawing: RandomNetwork, x: str, width: int, stride: int) -> str:
    growth = drawing.width(12, 64)
    for _ in range(int(drawing.rng.integers(2, 7))):
        y = drawing.act(drawing.norm(x)) if drawing.chance(0.6) else x
        y = drawing.unit(y, growth * int(drawing.rng.choice([1, 4]))) if drawing.chance(0.8) else y
        y = drawing.conv(y, growth, 3)
        x = drawing.add("concat", x, y)
    x = drawing.unit(x, max(16, drawing.channels(x) // 2))
    return drawing.pool(x, "avg_pool", 2, 2) if stride > 1 else x


@styles.register("branches")
def _branches(drawing: RandomNetwork, x: str, width: int, stride: int) -> str:
    if stride > 1:
        x = drawing.pool(x)
    for _ in range(int(drawing.rng.integers(1, 3))):
        parts = [drawing.unit(x, drawing.width(16, max(32, width)))]
        for kernel in drawing.rng.choice([3, 3, 5, 7], size=int(drawing.rng.integers(1, 4))):
            y = drawing.unit(x, drawing.width(16, max(32, width // 2)))
            out = drawing.width(16, max(32, width))
            if kernel == 7:
                y = drawing.act(drawing.norm(drawing.conv(y, out, 1, across=7)))
                y = drawing.act(drawing.norm(drawing.conv(y, out, 7, across=1)))
            else:
                y = drawing.unit(y, out, int(kernel))
            parts.append(y)
        if drawing.chance(0.5):
            pooled = drawing.pool(x, str(drawing.rng.choice(["max_pool", "avg_pool"])), 3, 1)
            parts.append(drawing.unit(pooled, drawing.width(16, max(32, width // 2))))
        x = drawing.add("concat", *parts)
    return x


@styles.register("shuffled")
def _shuffled(drawing: RandomNetwork, x: str, width: int, stride: int) -> str:
    half = drawing.width(max(16, width // 2), min(512, width * 2))
    left = drawing.unit(drawing.depthwise(x, 3, stride, act=False), half)
    right = drawing.unit(drawing.depthwise(drawing.unit(x, half), 3, stride, act=False), half)
    x = drawing.add("channel_shuffle", drawing.add("concat", left, right), groups=2)
    for _ in range(int(drawing.rng.integers(1, 4))):
        left, right = drawing.add("slice", x, start=0, stop=half), drawing.add("slice", x, start=half, stop=2 * half)
        right = drawing.unit(drawing.depthwise(drawing.unit(right, half), int(drawing.rng.choice([3, 5])), act=False), half)
        x = drawing.add("channel_shuffle", drawing.add("concat", left, right), groups=2)
    return x


@styles.register("ghosts")
def _ghosts(drawing: RandomNetwork, x: str, width: int, stride: int) -> str:
    out = drawing.width(max(16, width // 2), min(480, width * 2))
    for number in range(int(drawing.rng.integers(1, 4))):
        y = drawing.unit(x, out)
        y = drawing.add("concat", y, drawing.depthwise(y, 3))
        if stride > 1 and number == 0:
            y = drawing.depthwise(y, int(drawing.rng.choice([3, 5])), 2, act=False)
        if drawing.chance(0.3):
            y = drawing.squeeze(y)
        y = drawing.unit(y, max(8, out // 2), act=False)
        y = drawing.add("concat", y, drawing.depthwise(y, 3, act=False))
        x = drawing.add("add", y, x) if drawing.shapes[x] == drawing.shapes[y] else y
    return x


@styles.register("normalised")
def _normalised(drawing: RandomNetwork, x: str, width: int, stride: int) -> str:
    out = drawing.width(max(24, width // 2), min(640, width * 2))
    x = drawing.add("layer_norm", x, eps=1e-6, affine=True)
    x = drawing.conv(x, out, stride, stride, bias=True)
    for _ in range(int(drawing.rng.integers(1, 3))):
        y = drawing.conv(x, out, 7, groups=out, bias=True)
        y = drawing.add("layer_norm", y, eps=1e-6, affine=True)
        y = drawing.conv(drawing.act(drawing.conv(y, out * 4, bias=True), "gelu"), out, bias=True)
        x = drawing.add("add", y, x)
    return x


@styles.register("preactivated")
def _preactivated(drawing: RandomNetwork, x: str, width: int, stride: int) -> str:
    inner = drawing.width(width // 2 + 8, min(384, width * 2))
    for number in range(int(drawing.rng.integers(1, 4))):
        step = stride if number == 0 else 1
        y = drawing.act(drawing.norm(x), "relu")
        around = x if step == 1 and drawing.channels(x) == inner * 4 else drawing.conv(y, inner * 4, 1, step)
        y = drawing.unit(drawing.unit(y, inner), inner, 3, step)
        x = drawing.add("add", drawing.conv(y, inner * 4), around)
    return x


@styles.register("parallel")
def _parallel(drawing: RandomNetwork, x: str, width: int, stride: int) -> str:
    out = drawing.width(max(16, width // 2), min(512, width * 2))
    lone = drawing.chance(0.4)
    for number in range(int(drawing.rng.integers(1, 4))):
        step = stride if number == 0 else 1
        groups = drawing.channels(x) if lone else 1
        out_now = drawing.channels(x) if lone else out
        y = drawing.add(
            "add", drawing.norm(drawing.conv(x, out_now, 3, step, groups)), drawing.norm(drawing.conv(x, out_now, 1, step, groups))
        )  # fmt: skip
        if step == 1 and drawing.shapes[y] == drawing.shapes[x]:
            y = drawing.add("add", y, drawing.norm(x))
        x = drawing.act(y)
        if lone:
            x = drawing.unit(x, out)
    return x


@styles.register("exchanged")
def _exchanged(drawing: RandomNetwork, x: str, width: int, stride: int) -> str:
    out = drawing.width(16, min(256, width * 2))
    x = drawing.unit(x, out, 3, stride)
    if drawing.size(x) % 2 or drawing.size(x) < 8:
        return _residual(drawing, x, width, 1)
    low = drawing.unit(x, out * 2, 3, 2)
    for _ in range(int(drawing.rng.integers(1, 3))):
        x, low = drawing.unit(x, out, 3), drawing.unit(low, out * 2, 3)
        up = drawing.add("upsample", drawing.norm(drawing.conv(low, out)), scale=(2, 2))
        down = drawing.norm(drawing.conv(x, out * 2, 3, 2))
        x, low = drawing.act(drawing.add("add", x, up)), drawing.act(drawing.add("add", low, down))
    return drawing.add("concat", drawing.pool(x, "avg_pool", 2, 2), low)


#: Names of all styles; the last, ``mixed``, combines the others.
STYLES = (*styles, "mixed")
