"""Small and full-size networks as operator graphs, written out so that no torch is needed."""

from predictors.graph import Op, OpGraph


def convolution(name: str, source: str, out: int, kernel: int = 1, stride: int = 1, groups: int = 1, *, bias: bool = False) -> Op:
    """A convolution with padding, whose output has the input's size divided by the stride."""
    window = {"kernel": (kernel, kernel), "stride": (stride, stride), "padding": (kernel // 2,) * 4, "dilation": (1, 1)}
    return Op(name, "conv", (source,), {"out_channels": out, "groups": groups, "bias": bias, **window})


class Net:
    def __init__(self, *shape: int) -> None:
        self.ops = [Op("input", "input", attrs={"shape": shape})]
        self.last = "input"

    def add(self, kind: str, *inputs: str, **attrs: object) -> str:
        name = f"{kind}_{len(self.ops)}"
        self.ops.append(Op(name, kind, inputs or (self.last,), attrs))
        self.last = name
        return name

    def conv(self, out: int, kernel: int = 1, stride: int = 1, groups: int = 1, act: str | None = "relu", source: str | None = None) -> str:
        self.add("conv", *([source] if source else []), **convolution("", "", out, kernel, stride, groups).attrs)
        self.add("batch_norm", affine=True, eps=1e-5)
        return self.add(act) if act else self.last

    def bottlenecks(self, blocks: tuple[int, ...], mids: tuple[int, ...]) -> None:
        """Stages of residual blocks with three convolutions: `blocks` and inner channels (`mids`) per stage."""
        for stage, (count, mid) in enumerate(zip(blocks, mids, strict=True)):
            for block in range(count):
                start, stride = self.last, 2 if stage and not block else 1
                self.conv(mid)
                self.conv(mid, 3, stride)
                main = self.conv(4 * mid, act=None)
                short = start if block else self.conv(4 * mid, stride=stride, act=None, source=start)
                self.add("add", main, short)
                self.add("relu")

    def head(self, classes: int) -> None:
        self.add("global_avg_pool", keepdims=False)
        self.add("linear", out_features=classes, bias=True)

    def graph(self, name: str) -> OpGraph:
        return OpGraph.build(name, self.ops, self.last)


def resnet50(size: int = 224) -> OpGraph:
    net = Net(1, 3, size, size)
    net.conv(64, 7, 2)
    net.add("max_pool", kernel=(3, 3), stride=(2, 2), padding=(1, 1, 1, 1), ceil_mode=False)
    net.bottlenecks((3, 4, 6, 3), (64, 128, 256, 512))
    net.head(1000)
    return net.graph("resnet50")


def efficientnet(stages: list[tuple[int, int, int, int, int]], stem: int, head: int, size: int, se: bool, act: str) -> OpGraph:
    """Stages are (expansion, kernel, stride, channels, blocks)."""
    net = Net(1, 3, size, size)
    net.conv(stem, 3, 2, act=act)
    channels = stem
    for expansion, kernel, stage_stride, out, blocks in stages:
        for block in range(blocks):
            start, stride, inner = net.last, stage_stride if not block else 1, channels * expansion
            if expansion > 1:
                net.conv(inner, act=act)
            deep = net.conv(inner, kernel, stride, groups=inner, act=act)
            if se:
                net.add("global_avg_pool", keepdims=True)
                for width, gate in ((max(1, channels // 4), act), (inner, "sigmoid")):
                    net.add("conv", **convolution("", "", width, bias=True).attrs)
                    net.add(gate)
                net.add("mul", deep, net.last)
            end = net.conv(out, act=None)
            if stride == 1 and channels == out:
                net.add("add", end, start)
            channels = out
    net.conv(head, act=act)
    net.head(1000)
    return net.graph("efficientnet")


LITE4 = [(1, 3, 1, 24, 1), (6, 3, 2, 32, 4), (6, 5, 2, 56, 4), (6, 3, 2, 112, 6), (6, 5, 1, 160, 6), (6, 5, 2, 272, 8), (6, 3, 1, 448, 1)]
B5 = [(1, 3, 1, 24, 3), (6, 3, 2, 40, 5), (6, 5, 2, 64, 5), (6, 3, 2, 128, 7), (6, 5, 1, 176, 7), (6, 5, 2, 304, 9), (6, 3, 1, 512, 3)]


def efficientnet_lite4() -> OpGraph:
    return efficientnet(LITE4, 32, 1280, 224, se=False, act="relu6")


def efficientnet_b5() -> OpGraph:
    return efficientnet(B5, 48, 2048, 224, se=True, act="silu")


def small_resnet(size: int = 32, blocks: tuple[int, ...] = (3, 3), mids: tuple[int, ...] = (32, 64)) -> OpGraph:
    """Two bottleneck stages: large enough to branch, small enough for brute force."""
    net = Net(1, 3, size, size)
    net.conv(32, 3)
    net.bottlenecks(blocks, mids)
    net.head(10)
    return net.graph("small_resnet")


def small_regnet(group: int = 8, widths: tuple[int, ...] = (32, 64), size: int = 32) -> OpGraph:
    """Residual blocks whose 3×3 convolutions have groups of `group` channels."""
    net = Net(1, 3, size, size)
    net.conv(16, 3, 2)
    for width in widths:
        for block in range(2):
            start, stride = net.last, 1 if block else 2
            net.conv(width)
            net.conv(width, 3, stride, groups=width // group)
            main = net.conv(width, act=None)
            net.add("add", main, start if block else net.conv(width, stride=stride, act=None, source=start))
            net.add("relu")
    net.head(10)
    return net.graph("small_regnet")
