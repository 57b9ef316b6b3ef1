"""A TFLite file as a torch network, operator by operator."""

from collections import Counter
from pathlib import Path

import numpy as np
from torch import fx

from predictors.errors import StretchError
from scheduler.formats.onnx.checks import MAX_PARTS
from scheduler.formats.tflite import TfliteNetwork, TfliteOperator, TfliteTensor, open_tflite
from stretch.capture.inputs import InputShapes
from stretch.models.builder import Builder, Size, Stated, by_name, finished, named_ends, reading, settled
from stretch.models.tflite.site import RULES, TfliteSite, TfliteView, Value, plain

#: Operators that change no order of axes: behind them it is seen which order the input has.
_ANY_ORDER = frozenset({"ADD", "SUB", "MUL", "DIV", "QUANTIZE", "DEQUANTIZE", "CAST", "MAXIMUM", "MINIMUM"})

_TO_LAST = [0, 2, 3, 1]


def read_module(path: str | Path, input_shape: InputShapes | None = None) -> fx.GraphModule:
    """The network in a TFLite file of any converter, in evaluation mode; of several outputs it returns a dictionary by their names.

    Images, N×H×W×C in the file, are N×C×H×W in what it reads and gives. Weights of half precision or of rounded
    numbers become reals of single precision, and what rounds activations is left out. What the module says of its inputs:
    `stretch.models.builder.finished`.
    """
    return _TfliteLowering(open_tflite(Path(path)), input_shape).network()


class _TfliteLowering:
    def __init__(self, network: TfliteNetwork, input_shapes: InputShapes | None) -> None:
        self._network = network
        if max(len(network.operators), len(network.tensors), len(network.inputs), len(network.outputs)) > MAX_PARTS:
            raise StretchError(f"{network.path} has more than {MAX_PARTS} operators or tensors, which is no network that can be branched")
        images = [len(network.tensors[i].shape) == 4 and not self._turned_at_once(i) for i in network.inputs]
        self._ends = named_ends(network.path, [self._stated(i, image) for i, image in zip(network.inputs, images, strict=True)])
        self._shapes = settled(network.path, self._ends, input_shapes)
        self._builder = Builder(self._shapes)
        self._values: dict[int, Value] = {i: tensor.reals for i, tensor in enumerate(network.tensors) if tensor.stored is not None}
        for i, end, image in zip(network.inputs, self._ends, images, strict=True):
            self._values[i] = TfliteView(self._builder.inputs[end.argument], "image" if image else "plain")

    def _warnings(self) -> list[str]:
        """What was left out."""
        rounded = sum(tensor.quantisation is not None and tensor.stored is None for tensor in self._network.tensors)
        if not rounded:
            return []
        return [f"{self._network.path} rounds {rounded} activations to int8: they are reals here, and `stretch export` finds new scales"]

    def network(self) -> fx.GraphModule:
        """The network."""
        path = self._network.path
        for operator in self._network.operators:
            with reading(path, f"operator `{self._name(operator)[:80]}` ({operator.code})"):
                self._lower(operator)
        returned = by_name([(self._network.tensors[i].name, self._result(i)) for i in self._network.outputs])
        return finished(path, self._builder.finish(returned, "Network"), self._shapes, self._ends, self._warnings())

    def _result(self, tensor: int) -> fx.Node:
        """What the network returns for an output; what the file stores as it is."""
        value = self._values[tensor]
        if isinstance(value, TfliteView) and value.form == "image":
            return value.node
        return plain(self._builder, value) if isinstance(value, TfliteView) else self._builder.stored(value, "")

    def _name(self, operator: TfliteOperator) -> str:
        """That of what it writes, without the names that converters join to it."""
        return self._network.tensors[operator.outputs[0]].name.partition(";")[0] if operator.outputs else operator.code

    def _lower(self, operator: TfliteOperator) -> None:
        reads = [None if i is None else self._values[i] for i in operator.inputs]
        tensors = [self._network.tensors[i] for i in operator.outputs]
        built = self._told(operator, reads)
        if built is None:
            built = self._made(operator, reads, tensors)
        if len(built) != len(tensors):
            raise StretchError(f"it writes {len(tensors)} tensors, {len(built)} are known")
        self._values |= dict(zip(operator.outputs, built, strict=True))

    def _made(self, operator: TfliteOperator, reads: list[Value], tensors: list[TfliteTensor]) -> list[Value]:
        rule = RULES.get(operator.code)
        if rule is None and operator.custom:
            raise StretchError(
                "it is a custom operator, which is computed by code outside the file",
                "convert the network with TFLite's own operators alone",
            )
        if rule is None:
            raise StretchError("there is no rule for this operator")
        kinds = [tensor.kind for tensor in tensors]
        if any(isinstance(read, TfliteView) for read in reads):
            result = rule(TfliteSite(reads, operator.code, self._name(operator), operator.settings, len(tensors), self._builder, kinds))
            return list(result) if isinstance(result, list) else [result]
        return self._computed(operator, reads, kinds)

    def _computed(self, operator: TfliteOperator, reads: list[Value], kinds: list[str]) -> list[Value]:
        """The results of an operator that reads nothing but stored tensors, computed by its own rule."""
        if operator.code in ("QUANTIZE", "DEQUANTIZE"):
            return [reads[0]]
        builder = Builder((1,))
        computed = [
            TfliteView(builder.stored(read, f"x{i}")) if isinstance(read, np.ndarray) and read.dtype.kind == "f" else read
            for i, read in enumerate(reads)
        ]
        # What is whole may be a shape or axes, which rules need to know.
        if not any(isinstance(item, TfliteView) for item in computed) and isinstance(computed[0], np.ndarray):
            computed[0] = TfliteView(builder.stored(computed[0], "x0"))
        result = RULES[operator.code](TfliteSite(computed, operator.code, "known", operator.settings, len(kinds), builder, kinds))
        return [builder.evaluated(plain(builder, item)) for item in (result if isinstance(result, list) else [result])]

    def _told(self, operator: TfliteOperator, reads: list[Value]) -> list[Value] | None:
        """What an operator tells of the shape of a tensor of the network; None for any other."""
        if operator.code != "SHAPE" or not isinstance(reads[0], TfliteView):
            return None
        return [np.array(reads[0].shape, np.int32)]

    def _turned_at_once(self, tensor: int) -> bool:
        """Whether all that reads a tensor first puts its channels last: then they are second in the file, too."""
        readers = [operator for operator in self._network.operators if tensor in operator.inputs]
        if not readers:
            return False
        counts = Counter(self._turns(operator) for operator in readers)
        return set(counts) == {True}

    def _turns(self, operator: TfliteOperator) -> bool:
        if operator.code == "TRANSPOSE" and len(operator.inputs) == 2 and operator.inputs[1] is not None:
            order = self._network.tensors[operator.inputs[1]].stored
            return order is not None and order.ravel().tolist() == _TO_LAST
        return operator.code in _ANY_ORDER and len(operator.outputs) == 1 and self._turned_at_once(operator.outputs[0])

    def _stated(self, tensor: int, image: bool) -> Stated:
        """What the file states of an input; an image keeps its channels."""
        start = self._network.tensors[tensor]
        sizes = [Size(n) for n in start.shape]
        if image:
            sizes = [sizes[0], Size(start.shape[3], fixed=3 not in start.opened), *sizes[1:3]]
        readers = [operator for operator in self._network.operators if tensor in operator.inputs]
        kinds = [self._network.tensors[operator.outputs[0]].kind for operator in readers if operator.code == "CAST" and operator.outputs]
        cast = bool(readers) and len(kinds) == len(readers) and set(kinds) <= {"float32", "float16"}
        return Stated(start.name, sizes, start.kind if start.quantisation is None else "float32", cast)
