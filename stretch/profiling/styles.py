"""Random networks in the styles of real ones: shapes fill the space that real networks lie in, and kernels meet the neighbours they meet there.

Timed by themselves kernels would pay for changes of layout that networks save, so
what is measured are whole networks, small in depth and of any width.
"""

from collections.abc import Callable

import numpy as np

from predictors.graph import OpGraph
from predictors.registry import Registry
from stretch.profiling.drawing import Drawing

#: What a style draws: one stage, at the size and from the tensor that it is given, as wide as it is told.
Stage = Callable[[Drawing, str, int, int], str]

styles: Registry[Stage] = Registry("style")

#: Sizes of input images and how often they are drawn; most networks of today take 224.
_SIZES = (96, 128, 160, 192, 224, 256, 288)
_SHARES = (0.05, 0.1, 0.1, 0.1, 0.45, 0.15, 0.05)

#: Most multiply-accumulates of a network, so that one is measured in a fraction of a second.
_MAX_MACS = 2.5e9


def draw(style: str, seed: int) -> OpGraph:
    """A network of a style; the same seed gives the same network.

    Args:
        style: A name of `styles`.
    """
    name = f"{style}-{seed:05d}"
    attempt = 0
    while True:
        graph = _draw(style, name, np.random.default_rng([sum(style.encode()), seed, attempt]))
        if graph.macs <= _MAX_MACS:
            return graph
        attempt += 1


def _draw(style: str, name: str, rng: np.random.Generator) -> OpGraph:
    made = Drawing.of(rng, int(rng.choice(_SIZES, p=_SHARES)))
    x = _stem(made)
    first = int(rng.integers(0, 4))
    width = made.width(16, 96)
    mixed = style == "mixed"
    for stage in range(4):
        small = made.size(x) <= 7
        if stage < first and not small:
            # Stages are left out by stepping over their sizes, so that each network looks at some of them closely.
            x = made.pool(x) if made.chance(0.7) else made.unit(x, made.width(16, 64), 1, 2)
            width = int(width * rng.uniform(1.3, 2))
            continue
        chosen = str(rng.choice([each for each in styles if each != style])) if mixed else style
        x = styles.get(chosen)(made, x, width, 1 if small else 2)
        width = min(1024, int(width * rng.uniform(1.3, 2.2)))
        if made.chance(0.25):
            break
    if made.chance(0.35):
        x = made.unit(x, made.width(256, 1536))
    return made.finish(name)


def _stem(made: Drawing) -> str:
    width, kernel = made.width(12, 72), int(made.rng.choice([3, 3, 5, 7, 4]))
    if kernel == 4:
        return made.conv(made.last, width, 4, 4, bias=True)
    return made.unit(made.last, width, kernel, 2)


@styles.register("plain")
def _plain(made: Drawing, x: str, width: int, stride: int) -> str:
    for number in range(int(made.rng.integers(1, 4))):
        kernel = int(made.rng.choice([1, 3, 3, 3, 5, 7], p=[0.2, 0.2, 0.2, 0.2, 0.1, 0.1]))
        out = made.width(max(16, width // 2), min(768, width * 2))
        if made.chance(0.3):
            x = made.act(made.conv(x, out, kernel, stride if number == 0 else 1, bias=True))
        else:
            x = made.unit(x, out, kernel, stride if number == 0 else 1)
    return made.pool(x, kernel=int(made.rng.choice([2, 3])), stride=stride) if made.chance(0.3) and made.size(x) > 7 else x


def _shortcut(made: Drawing, x: str, y: str, stride: int) -> str:
    """The sum of a block and what goes around it."""
    if stride > 1 or made.channels(x) != made.channels(y):
        if made.chance(0.3) and stride > 1:
            x = made.pool(x, "avg_pool", 2, 2)
            stride = 1
        x = made.norm(made.conv(x, made.channels(y), 1, stride))
    return made.add("add", y, x) if made.shapes[x] == made.shapes[y] else y


@styles.register("residual")
def _residual(made: Drawing, x: str, width: int, stride: int) -> str:
    out, kernel = made.width(width // 2 + 8, min(640, width * 2)), int(made.rng.choice([3, 3, 3, 5]))
    for number in range(int(made.rng.integers(1, 4))):
        step = stride if number == 0 else 1
        y = made.unit(x, out, kernel, step)
        y = made.unit(y, out, kernel, act=False)
        x = made.act(_shortcut(made, x, y, step))
    return x


@styles.register("bottleneck")
def _bottleneck(made: Drawing, x: str, width: int, stride: int) -> str:
    inner, growth = made.width(width // 2 + 8, min(512, width * 2)), int(made.rng.choice([1, 2, 4]))
    per = int(made.rng.choice([0, 0, 4, 8, 16, 24, 32, 48]))
    if per:
        inner = max(per, inner // per * per)
    gated = made.chance(0.25)
    for number in range(int(made.rng.integers(1, 4))):
        step = stride if number == 0 else 1
        y = made.unit(x, inner)
        y = made.unit(y, inner, 3, step, inner // per if per else 1)
        if gated:
            y = made.squeeze(y)
        y = made.unit(y, inner * growth, act=False)
        x = made.act(_shortcut(made, x, y, step))
    return x


@styles.register("inverted")
def _inverted(made: Drawing, x: str, width: int, stride: int) -> str:
    out, gated = made.width(max(12, width // 3), min(320, width)), made.chance(0.4)
    for number in range(int(made.rng.integers(1, 5))):
        step = stride if number == 0 else 1
        kernel = int(made.rng.choice([3, 5, 7], p=[0.55, 0.35, 0.1]))
        y = made.unit(x, min(1536, made.channels(x) * int(made.rng.choice([1, 2, 3, 4, 6]))))
        y = made.depthwise(y, kernel, step)
        if gated:
            y = made.squeeze(y)
        y = made.unit(y, out, act=False)
        x = made.add("add", y, x) if made.shapes[x] == made.shapes[y] else y
    return x


@styles.register("separable")
def _separable(made: Drawing, x: str, width: int, stride: int) -> str:
    for number in range(int(made.rng.integers(1, 4))):
        x = made.depthwise(x, int(made.rng.choice([3, 3, 5, 7])), stride if number == 0 else 1, act=made.chance(0.8))
        if made.chance(0.2):
            x = made.squeeze(x)
        x = made.unit(x, made.width(max(16, width // 2), min(1024, width * 2)))
    return x


@styles.register("dense")
def _dense(made: Drawing, x: str, width: int, stride: int) -> str:
    growth = made.width(12, 64)
    for _ in range(int(made.rng.integers(2, 7))):
        y = made.act(made.norm(x)) if made.chance(0.6) else x
        y = made.unit(y, growth * int(made.rng.choice([1, 4]))) if made.chance(0.8) else y
        y = made.conv(y, growth, 3)
        x = made.add("concat", x, y)
    x = made.unit(x, max(16, made.channels(x) // 2))
    return made.pool(x, "avg_pool", 2, 2) if stride > 1 else x


@styles.register("branches")
def _branches(made: Drawing, x: str, width: int, stride: int) -> str:
    if stride > 1:
        x = made.pool(x)
    for _ in range(int(made.rng.integers(1, 3))):
        parts = [made.unit(x, made.width(16, max(32, width)))]
        for kernel in made.rng.choice([3, 3, 5, 7], size=int(made.rng.integers(1, 4))):
            y = made.unit(x, made.width(16, max(32, width // 2)))
            out = made.width(16, max(32, width))
            if kernel == 7:
                y = made.act(made.norm(made.conv(y, out, 1, across=7)))
                y = made.act(made.norm(made.conv(y, out, 7, across=1)))
            else:
                y = made.unit(y, out, int(kernel))
            parts.append(y)
        if made.chance(0.5):
            pooled = made.pool(x, str(made.rng.choice(["max_pool", "avg_pool"])), 3, 1)
            parts.append(made.unit(pooled, made.width(16, max(32, width // 2))))
        x = made.add("concat", *parts)
    return x


@styles.register("shuffled")
def _shuffled(made: Drawing, x: str, width: int, stride: int) -> str:
    half = made.width(max(16, width // 2), min(512, width * 2))
    left = made.unit(made.depthwise(x, 3, stride, act=False), half)
    right = made.unit(made.depthwise(made.unit(x, half), 3, stride, act=False), half)
    x = made.add("channel_shuffle", made.add("concat", left, right), groups=2)
    for _ in range(int(made.rng.integers(1, 4))):
        left, right = made.add("slice", x, start=0, stop=half), made.add("slice", x, start=half, stop=2 * half)
        right = made.unit(made.depthwise(made.unit(right, half), int(made.rng.choice([3, 5])), act=False), half)
        x = made.add("channel_shuffle", made.add("concat", left, right), groups=2)
    return x


@styles.register("ghosts")
def _ghosts(made: Drawing, x: str, width: int, stride: int) -> str:
    out = made.width(max(16, width // 2), min(480, width * 2))
    for number in range(int(made.rng.integers(1, 4))):
        y = made.unit(x, out)
        y = made.add("concat", y, made.depthwise(y, 3))
        if stride > 1 and number == 0:
            y = made.depthwise(y, int(made.rng.choice([3, 5])), 2, act=False)
        if made.chance(0.3):
            y = made.squeeze(y)
        y = made.unit(y, max(8, out // 2), act=False)
        y = made.add("concat", y, made.depthwise(y, 3, act=False))
        x = made.add("add", y, x) if made.shapes[x] == made.shapes[y] else y
    return x


@styles.register("normalised")
def _normalised(made: Drawing, x: str, width: int, stride: int) -> str:
    out = made.width(max(24, width // 2), min(640, width * 2))
    x = made.add("layer_norm", x, eps=1e-6, affine=True)
    x = made.conv(x, out, stride, stride, bias=True)
    for _ in range(int(made.rng.integers(1, 3))):
        y = made.conv(x, out, 7, groups=out, bias=True)
        y = made.add("layer_norm", y, eps=1e-6, affine=True)
        y = made.conv(made.act(made.conv(y, out * 4, bias=True), "gelu"), out, bias=True)
        x = made.add("add", y, x)
    return x


@styles.register("preactivated")
def _preactivated(made: Drawing, x: str, width: int, stride: int) -> str:
    inner = made.width(width // 2 + 8, min(384, width * 2))
    for number in range(int(made.rng.integers(1, 4))):
        step = stride if number == 0 else 1
        y = made.act(made.norm(x), "relu")
        around = x if step == 1 and made.channels(x) == inner * 4 else made.conv(y, inner * 4, 1, step)
        y = made.unit(made.unit(y, inner), inner, 3, step)
        x = made.add("add", made.conv(y, inner * 4), around)
    return x


@styles.register("parallel")
def _parallel(made: Drawing, x: str, width: int, stride: int) -> str:
    out = made.width(max(16, width // 2), min(512, width * 2))
    lone = made.chance(0.4)
    for number in range(int(made.rng.integers(1, 4))):
        step = stride if number == 0 else 1
        groups = made.channels(x) if lone else 1
        out_now = made.channels(x) if lone else out
        y = made.add(
            "add", made.norm(made.conv(x, out_now, 3, step, groups)), made.norm(made.conv(x, out_now, 1, step, groups))
        )  # fmt: skip
        if step == 1 and made.shapes[y] == made.shapes[x]:
            y = made.add("add", y, made.norm(x))
        x = made.act(y)
        if lone:
            x = made.unit(x, out)
    return x


@styles.register("exchanged")
def _exchanged(made: Drawing, x: str, width: int, stride: int) -> str:
    out = made.width(16, min(256, width * 2))
    x = made.unit(x, out, 3, stride)
    if made.size(x) % 2 or made.size(x) < 8:
        return _residual(made, x, width, 1)
    low = made.unit(x, out * 2, 3, 2)
    for _ in range(int(made.rng.integers(1, 3))):
        x, low = made.unit(x, out, 3), made.unit(low, out * 2, 3)
        up = made.add("upsample", made.norm(made.conv(low, out)), scale=(2, 2))
        down = made.norm(made.conv(x, out * 2, 3, 2))
        x, low = made.act(made.add("add", x, up)), made.act(made.add("add", low, down))
    return made.add("concat", made.pool(x, "avg_pool", 2, 2), low)


#: Names of all styles, the mixture of the others last.
STYLES = (*styles, "mixed")
