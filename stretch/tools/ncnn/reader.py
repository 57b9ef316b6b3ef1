"""ncnn's ``.param`` files as operator graphs, with the operators of each layer and all shapes.

An unknown layer becomes an opaque operator with the shape that the file
states, or that of its input, so that any network of ncnn can be predicted.
"""

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import SupportsIndex

from predictors.errors import StretchError, UsageError, need
from predictors.files import read_bytes
from predictors.graph import Op, OpGraph, unique_name
from predictors.operators import kind_of
from predictors.operators.opaque import attributes
from predictors.registry import RuleTable
from predictors.shapes import Attr, InputShapes, Shape, ints, same_padding
from stretch.stages.network import READERS

#: First line of every file of this format.
MAGIC = "7767517"

_PARAMETER = re.compile(r"-?\d+=.*")

#: Parameter ids from here downwards are lists.
_LISTS = -23300

#: Id of the parameter with the shapes of a layer's outputs.
_HINTS = -23330

MAX_LAYERS = 20_000

Number = int | float


@dataclass(frozen=True)
class NcnnLayer:
    """One line of a param file."""

    kind: str  # ncnn's name of the layer, such as ``Convolution``.
    name: str  # Name of the layer.
    inputs: tuple[str, ...]  # Names of its input blobs.
    outputs: tuple[str, ...]  # Names of its output blobs.
    params: dict[int, Number | tuple[Number, ...]] = field(default_factory=dict)  # Parameters by id; missing ones have defaults.
    shapes: tuple[Shape, ...] = ()  # Shapes of the outputs, batch first, as the file states them; empty if it does not.
    line: int = 0  # Line number in the file, from 1.

    def integer(self, key: int, default: int) -> int:
        """Return parameter `key` as a whole number."""
        value = self.params.get(key, default)
        if isinstance(value, tuple):
            raise StretchError(f"parameter {key} of layer `{self.name}` (line {self.line}) is a list, not a number")
        return int(value)

    def integers(self, key: int) -> tuple[int, ...]:
        """Return parameter `key` as a list of whole numbers; empty if it is missing."""
        value = self.params.get(key, ())
        return tuple(int(number) for number in value) if isinstance(value, tuple) else (int(value),)


def parse_layers(text: str, noun: str) -> list[NcnnLayer]:
    """Return the layers of a file, in its order."""
    lines = [line.split() for line in text.splitlines()]
    need(
        len(lines) >= 2 and lines[0] == [MAGIC],
        f"{noun} is no ncnn network: its first line is not {MAGIC}",
        "give the text file `NAME.param`, not the binary one",
    )
    if len(lines[1]) != 2 or not all(part.isascii() and part.isdigit() for part in lines[1]):
        raise StretchError(f"{noun} is damaged: line 2 is not the numbers of layers and blobs")
    stated = int(lines[1][0])
    need(stated <= MAX_LAYERS, f"{noun} has {stated} layers, the limit is {MAX_LAYERS}")
    written = [(number, parts) for number, parts in enumerate(lines[2:], start=3) if parts]
    need(len(written) >= stated, f"{noun} is damaged: it has {len(written)} layers, line 2 states {stated}")
    # ncnn itself reads only the stated number of layers
    return [_layer(parts, number, noun) for number, parts in written[:stated]]


def _layer(parts: list[str], number: int, noun: str) -> NcnnLayer:
    try:
        kind, name, reads, writes = parts[0], parts[1], int(parts[2]), int(parts[3])
        _check_blobs(parts[4:], reads, writes)
        blobs, settings = parts[4 : 4 + reads + writes], parts[4 + reads + writes :]
        params: dict[int, Number | tuple[Number, ...]] = {}
        for setting in settings:
            key, _, value = setting.partition("=")
            params.update([_parameter(int(key), value)])
    except (ValueError, IndexError, OverflowError) as error:
        raise StretchError(f"{noun} is damaged: line {number} is no layer ({error})") from error
    hints = params.pop(_HINTS, ())
    shapes = _hinted(hints) if isinstance(hints, tuple) else ()
    return NcnnLayer(kind, name, tuple(blobs[:reads]), tuple(blobs[reads:]), params, shapes if len(shapes) == writes else (), number)


def _check_blobs(rest: list[str], reads: int, writes: int) -> None:
    """Refuse a line with a wrong number of blobs; parameters, `id=value`, follow the blobs."""
    blobs = sum(1 for part in rest if not _PARAMETER.fullmatch(part))
    if reads < 0 or writes < 0 or blobs != reads + writes:
        raise ValueError(f"it states {reads} and {writes} blobs and has {blobs}")


def _parameter(key: int, value: str) -> tuple[int, Number | tuple[Number, ...]]:
    """Return the id and value; a list has its length before its items, and its id is counted down from −23300."""
    if key > _LISTS:
        return key, _number(value)
    count, *items = value.split(",")
    if int(count) != len(items):
        raise ValueError(f"list {key} states {count} items and has {len(items)}")
    return (key if key == _HINTS else _LISTS - key), tuple(_number(item) for item in items)


def _number(text: str) -> Number:
    value = float(text) if "." in text or "e" in text else int(text)
    if isinstance(value, float) and not abs(value) < 1e30:
        raise ValueError(f"{text} is no finite number")
    return value


def _hinted(hints: tuple[Number, ...]) -> tuple[Shape, ...]:
    """Return the shapes from quadruples of rank, width, height and channels."""
    shapes = []
    for start in range(0, len(hints) - 3, 4):
        rank, w, h, c = (int(hint) for hint in hints[start : start + 4])
        shapes.append({1: (1, w), 2: (1, h, w), 3: (1, c, h, w)}.get(rank, ()))
    return tuple(shapes) if all(shapes) else ()


#: Codes of automatic padding for ⌈size / stride⌉ output pixels; the second code puts an odd pixel first.
_SAME = (-233, -234)


@dataclass(frozen=True)
class Blob:
    """A tensor between layers."""

    op: str  # Name of the operator that computes it; empty for a tensor stored in the file.
    shape: Shape  # Shape, batch first: N×C×H×W, N×H×W or N×W.


@dataclass(frozen=True)
class NcnnStep:
    """One operator of a layer."""

    kind: str  # Kind of the operator.
    attrs: dict[str, Attr]  # Attributes that the kind needs.
    #: Inputs. None for the layer's inputs or, after the layer's first operator, for the operator before it. A blob without operator and
    #: shape also means the operator before it.
    reads: tuple[Blob, ...] | None = None


#: Function that returns for each output its operators, or a blob that is passed on.
Rule = Callable[[NcnnLayer, list[Blob]], Sequence[Sequence[NcnnStep] | Blob]]

BEFORE = Blob("", ())
LAYERS: RuleTable[Rule] = RuleTable()

_add = LAYERS.add


def stated(shape: Shape, kernel: str, variant: str, work: tuple[int, int, int, int, int] | None = None, weights: int = 0) -> NcnnStep:
    """Return an opaque operator; elementwise without `work`."""
    channels = shape[1] if len(shape) in (2, 4) else shape[-1]
    return NcnnStep("opaque", attributes(shape, kernel, variant, work or (1, 1, channels, 1, prod(shape) // channels), weights))


def opaque(layer: NcnnLayer, reads: list[Blob]) -> list[NcnnStep]:
    """Return one opaque operator per output of an unknown layer, or of a layer in an unknown form."""
    usual = next((blob.shape for blob in reads if blob.op), (1, 1))
    shapes = layer.shapes or tuple(usual for _ in layer.outputs)
    return [stated(shape, "elementwise", layer.kind.lower()) for shape in shapes]


def _activation(layer: NcnnLayer) -> list[NcnnStep]:
    """Return the operators of the activation that a layer applies to its result."""
    values, code = layer.params.get(10, ()), layer.integer(9, 0)
    numbers = [float(value) for value in (values if isinstance(values, tuple) else (values,))]
    if code not in range(7):
        raise ValueError(f"activation {code} is not known")
    if code == 2:
        return [NcnnStep("leaky_relu", {"slope": numbers[0]})]
    kind = (None, "relu", None, None, "sigmoid", "mish", "hard_swish")[code]
    return [NcnnStep(kind, {})] if kind else [_clip(numbers[0], numbers[1])] if code else []


def _clip(low: float, high: float) -> NcnnStep:
    return NcnnStep("relu6", {}) if (low, high) == (0, 6) else NcnnStep("clamp", {"low": low, "high": high})


def _window(layer: NcnnLayer, image: Shape) -> dict[str, Attr]:
    """Return the kernel, stride, dilation and padding of a convolution."""
    kw, dw, sw = layer.integer(1, 0), layer.integer(2, 1), layer.integer(3, 1)
    kh, dh, sh = layer.integer(11, kw), layer.integer(12, dw), layer.integer(13, sw)
    left = layer.integer(4, 0)
    if left in _SAME:
        padding = same_padding(image[2:], (kh, kw), (sh, sw), (dh, dw), odd_first=left != _SAME[0])
    else:
        top = layer.integer(14, left)
        padding = (top, left, layer.integer(16, top), layer.integer(15, left))
    return {"kernel": (kh, kw), "stride": (sh, sw), "dilation": (dh, dw), "padding": padding}


@_add("Convolution", "ConvolutionDepthWise")
def _convolution(layer: NcnnLayer, reads: list[Blob]) -> list[list[NcnnStep]]:
    attrs = _window(layer, reads[0].shape)
    groups = layer.integer(7, 1) if layer.kind == "ConvolutionDepthWise" else 1
    attrs |= {"out_channels": layer.integer(0, 0), "groups": groups, "bias": bool(layer.integer(5, 0))}
    return [[NcnnStep("conv", attrs), *_activation(layer)]]


@_add("Deconvolution", "DeconvolutionDepthWise")
def _deconvolution(layer: NcnnLayer, reads: list[Blob]) -> list[list[NcnnStep]]:
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
def _pooling(layer: NcnnLayer, reads: list[Blob]) -> list[list[NcnnStep]]:
    kind = "avg" if layer.integer(0, 0) else "max"
    if layer.integer(4, 0):
        return [[NcnnStep(f"global_{kind}_pool", {"keepdims": False})]]
    if layer.integer(7, 0):
        raise ValueError("adaptive pooling is not supported")
    image = reads[0].shape
    kw, sw, left = layer.integer(1, 0), layer.integer(2, 1), layer.integer(3, 0)
    kh, sh, top = layer.integer(11, kw), layer.integer(12, sw), layer.integer(13, left)
    right, bottom = layer.integer(14, left), layer.integer(15, top)
    mode = layer.integer(5, 0)
    if mode == 0:
        # every pixel is in a window: the remainder is padded at the end
        bottom += -(image[2] + top + bottom - kh) % sh
        right += -(image[3] + left + right - kw) % sw
    elif mode in (2, 3):
        top, left, bottom, right = same_padding(image[2:], (kh, kw), (sh, sw), (1, 1), odd_first=mode != 2)
    attrs: dict[str, Attr] = {"kernel": (kh, kw), "stride": (sh, sw), "padding": (top, left, bottom, right), "ceil_mode": False}
    extra: dict[str, Attr] = {"dilation": (1, 1)} if kind == "max" else {"count_include_pad": bool(layer.integer(6, 0))}
    return [[NcnnStep(f"{kind}_pool", attrs | extra)]]


@_add("InnerProduct")
def _inner_product(layer: NcnnLayer, reads: list[Blob]) -> list[list[NcnnStep]]:
    attrs: dict[str, Attr] = {"out_features": layer.integer(0, 0), "bias": bool(layer.integer(1, 0))}
    flat = [NcnnStep("flatten", {})] if len(reads[0].shape) == 4 else []
    return [[*flat, NcnnStep("linear", attrs), *_activation(layer)]]


@_add("Gemm")
def _gemm(layer: NcnnLayer, reads: list[Blob]) -> list[list[NcnnStep]]:
    """Convert a product with a stored matrix to a linear layer, and a product of two tensors to one without weights."""
    m, n, k = (layer.integer(key, 0) for key in (7, 8, 9))
    if layer.integer(5, 0) and len(reads) == 1:
        return [[NcnnStep("linear", {"out_features": n, "bias": bool(layer.integer(6, 0))})]]
    a, b = (blob.shape[1:] for blob in reads[:2])
    m, k = (a[1], a[0]) if layer.integer(2, 0) else (a[0], a[1])
    n = b[0] if layer.integer(3, 0) else b[1]
    return [[stated((1, m, n), "matmul", "matmul", (k, n, 1, 1, m))]]


@_add("MultiHeadAttention")
def _attention(layer: NcnnLayer, reads: list[Blob]) -> list[list[NcnnStep]]:
    """Convert attention to three projections, a product, a softmax, a second product and the last projection."""
    width, heads = layer.integer(0, 0), layer.integer(1, 1)
    query, key, value = (*reads, *[reads[-1]] * 2)[:3]
    left, right = query.shape[1], key.shape[1]
    linear: dict[str, Attr] = {"out_features": width, "bias": True}
    scores = (1, heads, left, right)
    steps = [NcnnStep("linear", linear, (blob,)) for blob in (query, key, value)]
    steps += [
        stated(scores, "matmul", "matmul", (width // heads, right, heads, 1, left)),
        stated(scores, "elementwise", "softmax"),
        stated((1, left, width), "matmul", "matmul", (right, width // heads, heads, 1, left)),
        NcnnStep("linear", linear),
    ]
    return [steps]


def _simple(kind: str) -> Rule:
    return lambda layer, reads: [[NcnnStep(kind, {})]]


_SIMPLE = {"Swish": "silu", "Mish": "mish", "Sigmoid": "sigmoid", "TanH": "tanh", "HardSwish": "hard_swish", "HardSigmoid": "hard_sigmoid"}

LAYERS |= {name: _simple(kind) for name, kind in _SIMPLE.items()} | {
    "BatchNorm": lambda layer, reads: [[NcnnStep("batch_norm", {"eps": float(layer.integer(1, 0)), "momentum": 0.1, "affine": True})]],
    "GELU": lambda layer, reads: [[NcnnStep("gelu", {"approximate": "tanh" if layer.integer(0, 0) else "none"})]],
    "Clip": lambda layer, reads: [[_clip(*(float(layer.params.get(key, 0)) for key in (0, 1)))]],
    "Dropout": lambda layer, reads: [reads[0]],
    "Flatten": lambda layer, reads: [reads[0] if len(reads[0].shape) == 2 else [_flat(reads[0])]],
    "Softmax": lambda layer, reads: [[stated(reads[0].shape, "elementwise", "softmax")]],
    "LayerNorm": lambda layer, reads: [[stated(reads[0].shape, "elementwise", "layer_norm", weights=2 * layer.integer(0, 0))]],
    "MemoryData": lambda layer, reads: [Blob("", (1, *[size for size in (layer.integer(key, 0) for key in (2, 1, 0)) if size]))],
    "ShuffleChannel": lambda layer, reads: [[NcnnStep("channel_shuffle", {"groups": layer.integer(0, 1)})]],
}


def _flat(blob: Blob) -> NcnnStep:
    return NcnnStep("flatten", {}) if len(blob.shape) == 4 else NcnnStep("view", {"shape": (1, prod(blob.shape))})


@_add("ReLU")
def _relu(layer: NcnnLayer, reads: list[Blob]) -> list[list[NcnnStep]]:
    slope = layer.params.get(0, 0)
    return [[NcnnStep("leaky_relu", {"slope": float(slope)})]] if slope and not isinstance(slope, tuple) else [[NcnnStep("relu", {})]]


@_add("Concat")
def _concat(layer: NcnnLayer, reads: list[Blob]) -> list[Sequence[NcnnStep] | Blob]:
    if len(reads) == 1:
        return [reads[0]]
    axis = layer.integer(0, 0) % (len(reads[0].shape) - 1) + 1
    if axis == 1 and all(blob.op for blob in reads):
        return [[NcnnStep("concat", {})]]
    shape = list(reads[0].shape)
    shape[axis] = sum(blob.shape[axis] for blob in reads)
    return [[stated(tuple(shape), "copy", "concat", weights=sum(prod(blob.shape) for blob in reads if not blob.op))]]


@_add("Slice")
def _slice(layer: NcnnLayer, reads: list[Blob]) -> list[list[NcnnStep]]:
    axis = layer.integer(1, 0) % (len(reads[0].shape) - 1) + 1
    size, start, cuts = reads[0].shape[axis], 0, []
    for remaining, part in zip(range(len(layer.outputs), 0, -1), layer.integers(0), strict=True):
        length = (size - start) // remaining if part == _SAME[0] else part
        cuts.append(_cut(reads[0], axis, start, start + length))
        start += length
    return [[cut] for cut in cuts]


def _cut(blob: Blob, axis: int, start: int, stop: int) -> NcnnStep:
    if axis == 1 and len(blob.shape) in (2, 4):
        return NcnnStep("slice", {"start": start, "stop": stop})
    shape = list(blob.shape)
    shape[axis] = stop - start
    return stated(tuple(shape), "copy", "slice")


@_add("Crop")
def _crop(layer: NcnnLayer, reads: list[Blob]) -> list[list[NcnnStep]]:
    starts, ends, axes = (layer.integers(key) for key in (9, 10, 11))
    if len(starts) != 1 or len(ends) != 1 or len(axes) > 1:
        return [[step] for step in opaque(layer, reads)]
    axis = (axes[0] if axes else 0) % (len(reads[0].shape) - 1) + 1
    size = reads[0].shape[axis]
    stop = min(size, ends[0] + size if ends[0] < 0 else ends[0])
    return [[_cut(reads[0], axis, starts[0], stop)]]


@_add("BinaryOp", "Eltwise")
def _binary(layer: NcnnLayer, reads: list[Blob]) -> list[list[NcnnStep]]:
    names = ("mul", "add", "max") if layer.kind == "Eltwise" else ("add", "sub", "mul", "div", "max", "min", "pow")
    code = layer.integer(0, 0)
    name = names[code] if code < len(names) else f"binary{code}"
    if layer.kind == "BinaryOp" and layer.integer(1, 0):
        value = layer.params.get(2, 0.0)
        if name in ("add", "mul") and not isinstance(value, tuple):
            return [[NcnnStep(f"{name}_scalar", {"value": float(value)})]]
        return [[stated(reads[0].shape, "elementwise", name)]]
    tensors = [blob for blob in reads if blob.op]
    if name in ("add", "mul") and len(tensors) == len(reads) and len({len(blob.shape) for blob in reads}) == 1:
        return [[NcnnStep(name, {})]]
    widest = max((blob.shape for blob in reads), key=prod)
    return [[stated(widest, "elementwise", name, weights=sum(prod(blob.shape) for blob in reads if not blob.op))]]


@_add("Reduction")
def _reduction(layer: NcnnLayer, reads: list[Blob]) -> list[list[NcnnStep]]:
    shape, axes, keep = reads[0].shape, layer.integers(3), bool(layer.integer(4, 0))
    over = sorted(axis % (len(shape) - 1) + 1 for axis in axes) if not layer.integer(1, 1) else list(range(1, len(shape)))
    if len(shape) == 4 and over == [2, 3] and layer.integer(0, 0) == 3:
        return [[NcnnStep("global_avg_pool", {"keepdims": keep})]]
    out = tuple(1 if axis in over else size for axis, size in enumerate(shape) if keep or axis not in over)
    out = out if len(out) > 1 else (1, 1)
    elements = prod(out)
    return [[stated(out, "reduce", "reduction", (1, 1, elements, max(1, prod(shape) // elements), 1))]]


@_add("Interp")
def _interp(layer: NcnnLayer, reads: list[Blob]) -> list[list[NcnnStep]]:
    n, c, h, w = reads[0].shape
    height = layer.integer(3, 0) or round(h * float(layer.params.get(1, 1.0)))  # type: ignore[arg-type]
    width = layer.integer(4, 0) or round(w * float(layer.params.get(2, 1.0)))  # type: ignore[arg-type]
    if layer.integer(0, 0) == 1 and height % h == 0 and width % w == 0:
        return [[NcnnStep("upsample", {"scale": (height // h, width // w)})]]
    return [[stated((n, c, height, width), "copy", "interp")]]


@_add("Padding")
def _padding(layer: NcnnLayer, reads: list[Blob]) -> list[Sequence[NcnnStep] | Blob]:
    top, bottom, left, right, front, behind = (layer.integer(key, 0) for key in (0, 1, 2, 3, 7, 8))
    n, c, h, w = reads[0].shape
    if not any((top, bottom, left, right, front, behind)):
        return [reads[0]]
    if front or behind:
        return [[stated((n, c + front + behind, h + top + bottom, w + left + right), "copy", "pad")]]
    return [[NcnnStep("pad", {"padding": (top, left, bottom, right)})]]


@_add("Reshape")
def _reshape(layer: NcnnLayer, reads: list[Blob]) -> list[list[NcnnStep]]:
    """Convert a reshape from width, height and channels; −1 is the remaining size, 0 the input's size."""
    shape = reads[0].shape
    sizes = [layer.integer(key, -233) for key in (2, 1, 0)]
    requested = [size for size in sizes if size != -233]
    static = [shape[-(len(requested) - i)] if size == 0 else size for i, size in enumerate(requested)]
    rest = prod(shape) // prod(size for size in static if size > 0)
    out = (1, *[rest if size < 0 else size for size in static])
    if prod(out) != prod(shape):
        raise ValueError(f"{shape} cannot be seen as {out}")
    return [[NcnnStep("view", {"shape": out})]]


#: Order of channels, height and width by ncnn's code, for tensors of three and of two axes.
_ORDERS = {3: ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)), 2: ((0, 1), (1, 0))}


@_add("Permute")
def _permute(layer: NcnnLayer, reads: list[Blob]) -> list[Sequence[NcnnStep] | Blob]:
    axes = reads[0].shape[1:]
    order = _ORDERS[len(axes)][layer.integer(0, 0)]
    if order == tuple(range(len(axes))):
        return [reads[0]]
    return [[stated((1, *[axes[axis] for axis in order]), "copy", "permute")]]


MAX_BYTES = 8 << 20


def read_ncnn(path: str | Path, input_shape: InputShapes | None = None) -> OpGraph:
    """Load the operator graph of an ncnn network.

    Args:
        path: Path of the text file ``NAME.param``.
        input_shape: Batch 1, channels, height, width; the size in the file if None.

    Raises:
        UsageError: If shapes are given by name, or for several inputs.
        StretchError: If the file cannot be read, is damaged, lacks a size of its input without one being
            given, or has a layer that does not fit its input. The message has the line.
    """
    path = Path(path)
    sizes = tuple(operator.index(size) for size in input_shape or () if isinstance(size, SupportsIndex))
    if len(sizes) != len(input_shape or ()):
        raise UsageError(f"{path} is an ncnn network, whose one input has no name", "give its shape alone, as 3x224x224")
    try:
        text = read_bytes(path, "ncnn network", MAX_BYTES).decode()
    except UnicodeDecodeError as error:
        raise StretchError(f"{path} is no ncnn network: it is no text", "give the text file `NAME.param`, not the binary one") from error
    return NcnnLowering(parse_layers(text, str(path)), path).graph(sizes or None)


class NcnnLowering:
    """Lowers the layers of one file.

    Args:
        layers: Layers in the file's order.
        path: Path of the file.
    """

    def __init__(self, layers: list[NcnnLayer], path: Path) -> None:
        self._layers, self._path = layers, path
        self._blobs: dict[str, Blob] = {}
        self._ops: dict[str, Op] = {}
        self._read: set[str] = set()

    def graph(self, input_shape: Shape | None) -> OpGraph:
        """Return the operator graph; several outputs get one more operator that reads them all."""
        for layer in self._layers:
            if layer.kind == "Input":
                self._input(layer, input_shape)
            else:
                self._lower(layer)
        need("input" in self._ops, f"{self._path} has no layer of kind `Input`")
        ends = [blob.op for name, blob in self._blobs.items() if name not in self._read and blob.op]
        ends = [end for end in dict.fromkeys(ends) if end != "input"]
        need(bool(ends), f"{self._path} computes nothing from its input")
        last = ends[0]
        if len(ends) > 1:
            last = unique_name("outputs", self._ops.__contains__)
            shape = self._ops[ends[0]].shape
            self._ops[last] = Op(last, "view", tuple(ends), {"shape": shape}, shape)
        return OpGraph.build(self._path.stem, self._ops.values(), last)

    def _input(self, layer: NcnnLayer, size: Shape | None) -> None:
        if "input" in self._ops:
            raise self._fault(layer, "there is a second input, and networks have one")
        w, h, c = (layer.integer(key, 0) for key in (0, 1, 2))
        shape = size or ((1, c, h, w) if w > 0 and h > 0 and c > 0 else None)
        if shape is None:
            raise self._fault(layer, "it states no size", "give the input's shape, as 3x224x224")
        self._ops["input"] = Op("input", "input", attrs={"shape": shape}, shape=shape)
        self._blobs[layer.outputs[0]] = Blob("input", shape)

    def _lower(self, layer: NcnnLayer) -> None:
        unknown = [name for name in layer.inputs if name not in self._blobs]
        if unknown:
            raise self._fault(layer, f"it reads `{unknown[0]}`, which no earlier layer writes")
        self._read.update(layer.inputs)
        reads = [self._blobs[name] for name in layer.inputs]
        if not layer.outputs:
            return
        if layer.kind == "Split" or (layer.kind == "Noop" and len(layer.inputs) == 1):
            self._blobs.update(dict.fromkeys(layer.outputs, reads[0]))
            return
        rule = LAYERS.get(layer.kind)
        try:
            results = rule(layer, reads) if rule else [[step] for step in opaque(layer, reads)]
            for number, (name, steps) in enumerate(zip(layer.outputs, results, strict=True)):
                self._blobs[name] = self._emit(layer, steps, reads, number)
        except (ValueError, KeyError, TypeError, IndexError, ZeroDivisionError) as error:
            raise self._fault(layer, f"it does not fit what it reads ({error})") from error

    def _emit(self, layer: NcnnLayer, steps: "Sequence[NcnnStep] | Blob", reads: list[Blob], number: int) -> Blob:
        """Add operators in a chain and return its result; the first reads the layer's inputs, unless a step states other ones."""
        if isinstance(steps, Blob):
            return steps
        last = Blob("", ())
        for place, step in enumerate(steps):
            sources = list(step.reads) if step.reads is not None else ([last] if place else [source for source in reads if source.op])
            names = [self._ops[source.op].name if source.op else last.op for source in sources]
            shape = kind_of(step.kind).shape([self._ops[name].shape for name in names], step.attrs)
            if min(shape, default=1) < 1:
                raise ValueError(f"its output would be {shape}")
            op_name = f"{layer.name}_{step.kind}" if place else layer.name
            name = unique_name(op_name.replace("/", "_").replace(".", "_"), self._ops.__contains__)
            self._ops[name] = Op(name, step.kind, tuple(names), step.attrs, shape)
            last = Blob(name, shape)
        stated = layer.shapes[number] if layer.shapes else None
        if stated is not None and prod(stated) != prod(last.shape):
            raise ValueError(f"the file states the output {stated}, its parameters give {last.shape}")
        return last

    def _fault(self, layer: NcnnLayer, problem: str, hint: str | None = None) -> StretchError:
        return StretchError(f"layer `{layer.name}` ({layer.kind}, line {layer.line}) of {self._path}: {problem}", hint)


READERS[".param"] = read_ncnn
