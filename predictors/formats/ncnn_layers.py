"""What ncnn's layers compute, layer kind by layer kind. Numbers of parameters are ncnn's own (its operator reference)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from predictors.formats.ncnn_text import Layer
from predictors.shapes import Attr, Shape, ints

#: Padding that ncnn computes so that ⌈size / stride⌉ pixels come out; the second puts the odd one first.
_SAME = (-233, -234)


@dataclass(frozen=True)
class Blob:
    """A tensor between layers."""

    op: str  # Name of the operator that computes it; empty for one that is stored in the file.
    shape: Shape  # Batch first; N×C×H×W, N×H×W or N×W.


@dataclass(frozen=True)
class Step:
    """One operator of a layer."""

    kind: str  # Its kind.
    attrs: dict[str, Attr]  # What the kind needs.
    #: What it reads; None for what the layer reads or, if it is not the layer's first, for the one before it. A blob without operator and
    #: shape stands for the one before it.
    reads: tuple[Blob, ...] | None = None


#: For each output its operators, or the blob that it is.
Rule = Callable[[Layer, list[Blob]], Sequence[Sequence[Step] | Blob]]

BEFORE = Blob("", ())
LAYERS: dict[str, Rule] = {}


def _add(*names: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        LAYERS.update(dict.fromkeys(names, rule))
        return rule

    return register


def stated(shape: Shape, kernel: str, variant: str, work: tuple[int, int, int, int, int] | None = None, weights: int = 0) -> Step:
    """An opaque operator; without `work` one that does the same for each element."""
    channels = shape[1] if len(shape) in (2, 4) else shape[-1]
    counts = work or (1, 1, channels, 1, prod(shape) // channels)
    named = dict(zip(("in_channels", "out_channels", "groups", "taps", "pixels"), counts, strict=True))
    return Step("opaque", {"shape": shape, "kernel": kernel, "variant": variant, **named, "weights": weights})


def opaque(layer: Layer, reads: list[Blob]) -> list[Step]:
    """An operator for each output of a layer that is not known, or not in this form."""
    usual = next((blob.shape for blob in reads if blob.op), (1, 1))
    shapes = layer.shapes or tuple(usual for _ in layer.outputs)
    return [stated(shape, "elementwise", layer.kind.lower()) for shape in shapes]


def _activation(layer: Layer) -> list[Step]:
    """What a layer applies to its own result."""
    values = layer.params.get(10, ())
    numbers = values if isinstance(values, tuple) else (values,)
    match layer.integer(9, 0):
        case 0:
            return []
        case 1:
            return [Step("relu", {})]
        case 2:
            return [Step("leaky_relu", {"slope": float(numbers[0])})]
        case 3:
            return [_clip(float(numbers[0]), float(numbers[1]))]
        case 4:
            return [Step("sigmoid", {})]
        case 5:
            return [Step("mish", {})]
        case 6:
            return [Step("hard_swish", {})]
        case other:
            raise ValueError(f"activation {other} is not known")


def _clip(low: float, high: float) -> Step:
    return Step("relu6", {}) if (low, high) == (0, 6) else Step("clamp", {"low": low, "high": high})


def _window(layer: Layer, image: Shape) -> dict[str, Attr]:
    """Window, stride, dilation and padding of a convolution."""
    kw, dw, sw = layer.integer(1, 0), layer.integer(2, 1), layer.integer(3, 1)
    kh, dh, sh = layer.integer(11, kw), layer.integer(12, dw), layer.integer(13, sw)
    left = layer.integer(4, 0)
    if left in _SAME:
        padding = _same_padding(image, (kh, kw), (sh, sw), (dh, dw), upper=left == _SAME[0])
    else:
        top = layer.integer(14, left)
        padding = (top, left, layer.integer(16, top), layer.integer(15, left))
    return {"kernel": (kh, kw), "stride": (sh, sw), "dilation": (dh, dw), "padding": padding}


def _same_padding(
    image: Shape, kernel: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int], *, upper: bool
) -> tuple[int, int, int, int]:
    before, after = [], []
    for size, k, s, d in zip(image[2:], kernel, stride, dilation, strict=True):
        total = max(0, d * (k - 1) + 1 + (size - 1) // s * s - size)
        small = total // 2
        before.append(small if upper else total - small)
        after.append(total - small if upper else small)
    return (before[0], before[1], after[0], after[1])


@_add("Convolution", "ConvolutionDepthWise")
def _convolution(layer: Layer, reads: list[Blob]) -> list[list[Step]]:
    attrs = _window(layer, reads[0].shape)
    groups = layer.integer(7, 1) if layer.kind == "ConvolutionDepthWise" else 1
    attrs |= {"out_channels": layer.integer(0, 0), "groups": groups, "bias": bool(layer.integer(5, 0))}
    return [[Step("conv", attrs), *_activation(layer)]]


@_add("Deconvolution", "DeconvolutionDepthWise")
def _deconvolution(layer: Layer, reads: list[Blob]) -> list[list[Step]]:
    n, cin, h, w = reads[0].shape
    attrs = _window(layer, reads[0].shape)
    (kh, kw), (sh, sw), (top, left, bottom, right) = (ints(attrs, key) for key in ("kernel", "stride", "padding"))
    cout, groups = layer.integer(0, 0), layer.integer(7, 1) if layer.kind == "DeconvolutionDepthWise" else 1
    shape = (n, cout, (h - 1) * sh + kh - top - bottom, (w - 1) * sw + kw - left - right)
    if cin % groups or cout % groups:
        raise ValueError(f"{groups} groups divide neither {cin} inputs nor {cout} outputs")
    kind = "depthwise" if groups == cin > 1 else "conv" if groups == 1 else "grouped"
    work = (cin // groups, cout // groups, groups, kh * kw, n * h * w)
    return [[stated(shape, kind, "deconvolution", work, layer.integer(6, 0)), *_activation(layer)]]


@_add("Pooling")
def _pooling(layer: Layer, reads: list[Blob]) -> list[list[Step]]:
    kind = "avg" if layer.integer(0, 0) else "max"
    if layer.integer(4, 0):
        return [[Step(f"global_{kind}_pool", {"keepdims": False})]]
    if layer.integer(7, 0):
        raise ValueError("adaptive pooling is not supported")
    image = reads[0].shape
    kw, sw, left = layer.integer(1, 0), layer.integer(2, 1), layer.integer(3, 0)
    kh, sh, top = layer.integer(11, kw), layer.integer(12, sw), layer.integer(13, left)
    right, bottom = layer.integer(14, left), layer.integer(15, top)
    mode = layer.integer(5, 0)
    if mode == 0:
        # every pixel is in a window: what is left over is padded at the end
        bottom += -(image[2] + top + bottom - kh) % sh
        right += -(image[3] + left + right - kw) % sw
    elif mode in (2, 3):
        top, left, bottom, right = _same_padding(image, (kh, kw), (sh, sw), (1, 1), upper=mode == 2)
    attrs: dict[str, Attr] = {"kernel": (kh, kw), "stride": (sh, sw), "padding": (top, left, bottom, right), "ceil_mode": False}
    extra: dict[str, Attr] = {"dilation": (1, 1)} if kind == "max" else {"count_include_pad": bool(layer.integer(6, 0))}
    return [[Step(f"{kind}_pool", attrs | extra)]]


@_add("InnerProduct")
def _inner_product(layer: Layer, reads: list[Blob]) -> list[list[Step]]:
    attrs: dict[str, Attr] = {"out_features": layer.integer(0, 0), "bias": bool(layer.integer(1, 0))}
    flat = [Step("flatten", {})] if len(reads[0].shape) == 4 else []
    return [[*flat, Step("linear", attrs), *_activation(layer)]]


@_add("Gemm")
def _gemm(layer: Layer, reads: list[Blob]) -> list[list[Step]]:
    """A product with a stored matrix is a linear layer; one of two tensors has no weights."""
    m, n, k = (layer.integer(key, 0) for key in (7, 8, 9))
    if layer.integer(5, 0) and len(reads) == 1:
        return [[Step("linear", {"out_features": n, "bias": bool(layer.integer(6, 0))})]]
    a, b = (blob.shape[1:] for blob in reads[:2])
    m, k = (a[1], a[0]) if layer.integer(2, 0) else (a[0], a[1])
    n = b[0] if layer.integer(3, 0) else b[1]
    return [[stated((1, m, n), "matmul", "matmul", (k, n, 1, 1, m))]]


@_add("MultiHeadAttention")
def _attention(layer: Layer, reads: list[Blob]) -> list[list[Step]]:
    """Three projections, a product, a softmax, a second product and the last projection."""
    width, heads = layer.integer(0, 0), layer.integer(1, 1)
    query, key, value = (*reads, *[reads[-1]] * 2)[:3]
    left, right = query.shape[1], key.shape[1]
    linear: dict[str, Attr] = {"out_features": width, "bias": True}
    scores = (1, heads, left, right)
    steps = [Step("linear", linear, (blob,)) for blob in (query, key, value)]
    steps += [
        stated(scores, "matmul", "matmul", (width // heads, right, heads, 1, left)),
        stated(scores, "elementwise", "softmax"),
        stated((1, left, width), "matmul", "matmul", (right, width // heads, heads, 1, left)),
        Step("linear", linear),
    ]
    return [steps]


def _simple(kind: str, **attrs: Attr) -> Rule:
    return lambda layer, reads: [[Step(kind, dict(attrs))]]


LAYERS |= {
    "Swish": _simple("silu"),
    "Mish": _simple("mish"),
    "Sigmoid": _simple("sigmoid"),
    "TanH": _simple("tanh"),
    "HardSwish": _simple("hard_swish"),
    "HardSigmoid": _simple("hard_sigmoid"),
    "GELU": lambda layer, reads: [[Step("gelu", {"approximate": "tanh" if layer.integer(0, 0) else "none"})]],
    "Clip": lambda layer, reads: [[_clip(*(float(layer.params.get(key, 0)) for key in (0, 1)))]],  # type: ignore[arg-type]
    "Dropout": lambda layer, reads: [reads[0]],
    "Flatten": lambda layer, reads: [reads[0] if len(reads[0].shape) == 2 else [_flat(reads[0])]],
    "Softmax": lambda layer, reads: [[stated(reads[0].shape, "elementwise", "softmax")]],
    "LayerNorm": lambda layer, reads: [[stated(reads[0].shape, "elementwise", "layer_norm", weights=2 * layer.integer(0, 0))]],
    "ShuffleChannel": lambda layer, reads: [[Step("channel_shuffle", {"groups": layer.integer(0, 1)})]],
}


def _flat(blob: Blob) -> Step:
    return Step("flatten", {}) if len(blob.shape) == 4 else Step("view", {"shape": (1, prod(blob.shape))})


@_add("BatchNorm")
def _batch_norm(layer: Layer, reads: list[Blob]) -> list[list[Step]]:
    return [[Step("batch_norm", {"eps": float(layer.integer(1, 0)), "momentum": 0.1, "affine": True})]]


@_add("ReLU")
def _relu(layer: Layer, reads: list[Blob]) -> list[list[Step]]:
    slope = layer.params.get(0, 0)
    return [[Step("leaky_relu", {"slope": float(slope)})]] if slope and not isinstance(slope, tuple) else [[Step("relu", {})]]


@_add("Concat")
def _concat(layer: Layer, reads: list[Blob]) -> list[Sequence[Step] | Blob]:
    if len(reads) == 1:
        return [reads[0]]
    axis = layer.integer(0, 0) % (len(reads[0].shape) - 1) + 1
    if axis == 1 and all(blob.op for blob in reads):
        return [[Step("concat", {})]]
    shape = list(reads[0].shape)
    shape[axis] = sum(blob.shape[axis] for blob in reads)
    return [[stated(tuple(shape), "copy", "concat", weights=sum(prod(blob.shape) for blob in reads if not blob.op))]]


@_add("Slice")
def _slice(layer: Layer, reads: list[Blob]) -> list[list[Step]]:
    axis = layer.integer(1, 0) % (len(reads[0].shape) - 1) + 1
    size, at, cuts = reads[0].shape[axis], 0, []
    for left, part in zip(range(len(layer.outputs), 0, -1), layer.integers(0), strict=True):
        length = (size - at) // left if part == _SAME[0] else part
        cuts.append(_cut(reads[0], axis, at, at + length))
        at += length
    return [[cut] for cut in cuts]


def _cut(blob: Blob, axis: int, start: int, stop: int) -> Step:
    if axis == 1 and len(blob.shape) in (2, 4):
        return Step("slice", {"start": start, "stop": stop})
    shape = list(blob.shape)
    shape[axis] = stop - start
    return stated(tuple(shape), "copy", "slice")


@_add("Crop")
def _crop(layer: Layer, reads: list[Blob]) -> list[list[Step]]:
    starts, ends, axes = (layer.integers(key) for key in (9, 10, 11))
    if len(starts) != 1 or len(ends) != 1 or len(axes) > 1:
        return [[step] for step in opaque(layer, reads)]
    axis = (axes[0] if axes else 0) % (len(reads[0].shape) - 1) + 1
    size = reads[0].shape[axis]
    stop = min(size, ends[0] + size if ends[0] < 0 else ends[0])
    return [[_cut(reads[0], axis, starts[0], stop)]]


@_add("BinaryOp", "Eltwise")
def _binary(layer: Layer, reads: list[Blob]) -> list[list[Step]]:
    names = ("mul", "add", "max") if layer.kind == "Eltwise" else ("add", "sub", "mul", "div", "max", "min", "pow")
    code = layer.integer(0, 0)
    name = names[code] if code < len(names) else f"binary{code}"
    if layer.kind == "BinaryOp" and layer.integer(1, 0):
        value = layer.params.get(2, 0.0)
        if name in ("add", "mul") and not isinstance(value, tuple):
            return [[Step(f"{name}_scalar", {"value": float(value)})]]
        return [[stated(reads[0].shape, "elementwise", name)]]
    tensors = [blob for blob in reads if blob.op]
    if name in ("add", "mul") and len(tensors) == len(reads) and len({len(blob.shape) for blob in reads}) == 1:
        return [[Step(name, {})]]
    widest = max((blob.shape for blob in reads), key=prod)
    return [[stated(widest, "elementwise", name, weights=sum(prod(blob.shape) for blob in reads if not blob.op))]]


@_add("Reduction")
def _reduction(layer: Layer, reads: list[Blob]) -> list[list[Step]]:
    shape, axes, keep = reads[0].shape, layer.integers(3), bool(layer.integer(4, 0))
    over = sorted(axis % (len(shape) - 1) + 1 for axis in axes) if not layer.integer(1, 1) else list(range(1, len(shape)))
    if len(shape) == 4 and over == [2, 3] and layer.integer(0, 0) == 3:
        return [[Step("global_avg_pool", {"keepdims": keep})]]
    out = tuple(1 if axis in over else size for axis, size in enumerate(shape) if keep or axis not in over)
    out = out if len(out) > 1 else (1, 1)
    elements = prod(out)
    return [[stated(out, "reduce", "reduction", (1, 1, elements, max(1, prod(shape) // elements), 1))]]


@_add("Interp")
def _interp(layer: Layer, reads: list[Blob]) -> list[list[Step]]:
    n, c, h, w = reads[0].shape
    height = layer.integer(3, 0) or round(h * float(layer.params.get(1, 1.0)))  # type: ignore[arg-type]
    width = layer.integer(4, 0) or round(w * float(layer.params.get(2, 1.0)))  # type: ignore[arg-type]
    if layer.integer(0, 0) == 1 and height % h == 0 and width % w == 0:
        return [[Step("upsample", {"scale": (height // h, width // w)})]]
    return [[stated((n, c, height, width), "copy", "interp")]]


@_add("Padding")
def _padding(layer: Layer, reads: list[Blob]) -> list[Sequence[Step] | Blob]:
    top, bottom, left, right, front, behind = (layer.integer(key, 0) for key in (0, 1, 2, 3, 7, 8))
    n, c, h, w = reads[0].shape
    if not any((top, bottom, left, right, front, behind)):
        return [reads[0]]
    if front or behind:
        return [[stated((n, c + front + behind, h + top + bottom, w + left + right), "copy", "pad")]]
    return [[Step("pad", {"padding": (top, left, bottom, right)})]]


@_add("Reshape")
def _reshape(layer: Layer, reads: list[Blob]) -> list[list[Step]]:
    """Width, height and channels; −1 is what is left, 0 what it reads."""
    shape = reads[0].shape
    sizes = [layer.integer(key, -233) for key in (2, 1, 0)]
    wanted = [size for size in sizes if size != -233]
    known = [shape[-(len(wanted) - i)] if size == 0 else size for i, size in enumerate(wanted)]
    rest = prod(shape) // prod(size for size in known if size > 0)
    out = (1, *[rest if size < 0 else size for size in known])
    if prod(out) != prod(shape):
        raise ValueError(f"{shape} cannot be seen as {out}")
    return [[Step("view", {"shape": out})]]


#: Order of channels, height and width by ncnn's number of it, for tensors of three and of two axes.
_ORDERS = {3: ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)), 2: ((0, 1), (1, 0))}


@_add("Permute")
def _permute(layer: Layer, reads: list[Blob]) -> list[Sequence[Step] | Blob]:
    axes = reads[0].shape[1:]
    order = _ORDERS[len(axes)][layer.integer(0, 0)]
    if order == tuple(range(len(axes))):
        return [reads[0]]
    return [[stated((1, *[axes[axis] for axis in order]), "copy", "permute")]]


@_add("MemoryData")
def _memory(layer: Layer, reads: list[Blob]) -> list[Blob]:
    sizes = [layer.integer(key, 0) for key in (2, 1, 0)]
    return [Blob("", (1, *[size for size in sizes if size]))]
