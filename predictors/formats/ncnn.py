"""ncnn's ``.param`` files as operator graphs: what each layer computes, with the shapes of everything.

A layer that is not known becomes an opaque operator of the shape that the file
states for it, or of its input's, so that whatever ncnn runs can be predicted.
"""

from collections.abc import Sequence
from math import prod
from pathlib import Path

from predictors.errors import StretchError
from predictors.files import read_bytes
from predictors.formats.ncnn_layers import LAYERS, Blob, Step, opaque
from predictors.formats.ncnn_text import Layer, parse_layers
from predictors.graph import Op, OpGraph
from predictors.operators import kind_of
from predictors.shapes import Shape

MAX_BYTES = 8 << 20


def read_ncnn(path: str | Path, input_shape: Sequence[int] | None = None) -> OpGraph:
    """The operator graph of an ncnn network.

    Args:
        path: Of the text file ``NAME.param``.
        input_shape: Batch 1, channels, height, width; what the file states if None.

    Raises:
        StretchError: If the file cannot be read, is damaged, states no size of its input and none is
            given, or has a layer that does not fit what it reads; names the line.
    """
    path = Path(path)
    try:
        text = read_bytes(path, "ncnn network", MAX_BYTES).decode()
    except UnicodeDecodeError as error:
        raise StretchError(f"{path} is no ncnn network: it is no text", "give the text file `NAME.param`, not the binary one") from error
    return Lowering(parse_layers(text, str(path)), path).graph(tuple(input_shape) if input_shape else None)


class Lowering:
    """Lowers the layers of one file.

    Args:
        layers: In the file's order.
        path: Of the file.
    """

    def __init__(self, layers: list[Layer], path: Path) -> None:
        self._layers, self._path = layers, path
        self._blobs: dict[str, Blob] = {}
        self._ops: dict[str, Op] = {}
        self._read: set[str] = set()

    def graph(self, input_shape: Shape | None) -> OpGraph:
        """The operator graph; of several outputs one operator that reads them all."""
        for layer in self._layers:
            if layer.kind == "Input":
                self._input(layer, input_shape)
            else:
                self._lower(layer)
        if "input" not in self._ops:
            raise StretchError(f"{self._path} has no layer of kind `Input`")
        ends = [blob.op for name, blob in self._blobs.items() if name not in self._read and blob.op]
        ends = [end for end in dict.fromkeys(ends) if end != "input"]
        if not ends:
            raise StretchError(f"{self._path} computes nothing from its input")
        last = ends[0]
        if len(ends) > 1:
            last = self._free_name("outputs")
            shape = self._ops[ends[0]].shape
            self._ops[last] = Op(last, "view", tuple(ends), {"shape": shape}, shape)
        return OpGraph.build(self._path.stem, self._ops.values(), last)

    def _input(self, layer: Layer, size: Shape | None) -> None:
        if "input" in self._ops:
            raise self._fault(layer, "there is a second input, and networks have one")
        w, h, c = (layer.integer(key, 0) for key in (0, 1, 2))
        shape = size or ((1, c, h, w) if w > 0 and h > 0 and c > 0 else None)
        if shape is None:
            raise self._fault(layer, "it states no size", "give the input's shape, as 3x224x224")
        self._ops["input"] = Op("input", "input", attrs={"shape": shape}, shape=shape)
        self._blobs[layer.outputs[0]] = Blob("input", shape)

    def _lower(self, layer: Layer) -> None:
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

    def _emit(self, layer: Layer, steps: "Sequence[Step] | Blob", reads: list[Blob], number: int) -> Blob:
        """Operators in a chain: the first reads what the layer reads, unless a step says otherwise."""
        if isinstance(steps, Blob):
            return steps
        last = Blob("", ())
        for place, step in enumerate(steps):
            sources = list(step.reads) if step.reads is not None else ([last] if place else [source for source in reads if source.op])
            names = [self._ops[source.op].name if source.op else last.op for source in sources]
            shape = kind_of(step.kind).shape([self._ops[name].shape for name in names], step.attrs)
            if min(shape, default=1) < 1:
                raise ValueError(f"its output would be {shape}")
            name = self._free_name(
                layer.name.replace("/", "_").replace(".", "_")
                if place == 0
                else f"{layer.name}_{step.kind}".replace("/", "_").replace(".", "_")
            )
            self._ops[name] = Op(name, step.kind, tuple(names), step.attrs, shape)
            last = Blob(name, shape)
        stated = layer.shapes[number] if layer.shapes else None
        if stated is not None and prod(stated) != prod(last.shape):
            raise ValueError(f"the file states the output {stated}, its parameters give {last.shape}")
        return last

    def _free_name(self, wanted: str) -> str:
        name, number = wanted, 1
        while name in self._ops:
            name, number = f"{wanted}_{number}", number + 1
        return name

    def _fault(self, layer: Layer, what: str, hint: str | None = None) -> StretchError:
        return StretchError(f"layer `{layer.name}` ({layer.kind}, line {layer.line}) of {self._path}: {what}", hint)
