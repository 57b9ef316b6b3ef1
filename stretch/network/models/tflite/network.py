"""A TFLite file as a torch network, operator by operator: what a rule reads, in which order of axes, and how it writes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import fx

from predictors.errors import StretchError, need
from predictors.registry import RuleTable
from scheduler.bundle.manifest import SourceFile, SourceTensor
from scheduler.formats.onnx.file import MAX_PARTS
from scheduler.formats.tflite import DEFAULTS, TfliteNetwork, TfliteOperator, open_tflite
from stretch.network.capture.inputs import InputShapes
from stretch.network.capture.results import walk_leaves
from stretch.network.models.builder import (
    Builder,
    End,
    OperatorInputs,
    OwnNetwork,
    Size,
    by_name,
    finish_network,
    named_ends,
    permute_axes,
    permute_shape,
    reading,
    rearrange,
    resolve_input_shapes,
    shape_of,
)
from stretch.network.models.onnx.network import RULES as ONNX
from stretch.network.models.onnx.network import Attributes, OnnxSite

#: Version of ONNX's operators that rules call.
_OPSET = 22

#: Settings that tensors imply as well: their types, how many there are, and their shapes.
HARMLESS = (
    *("in_data_type", "out_data_type", "output_type", "values_count", "num", "num_splits", "depth_multiplier", "new_shape"),
    "keep_num_dims",
)

#: Axes of N×C×H×W in the order of N×H×W×C.
_CHANNELS_LAST = (0, 2, 3, 1)

#: Position of each axis of N×H×W×C in N×C×H×W.
CHANNELS_FIRST = {0: 0, 1: 2, 2: 3, 3: 1}


@dataclass(frozen=True)
class TfliteView:
    """A tensor of the running network."""

    node: fx.Node  # Node that gives it.
    #: Order of the elements: ``file`` for the file's own; ``image`` for N×C×H×W instead of the file's N×H×W×C; ``row`` for N×CHW
    #: instead of N×HWC, of a flattened image.
    form: str = "file"
    size: tuple[int, ...] = ()  # Height, width and channels of that image.

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape in the file."""
        current = shape_of(self.node)
        return (current[0], current[2], current[3], current[1]) if self.form == "image" else current

    def like(self, node: fx.Node) -> "TfliteView":
        """Another tensor in the same order."""
        return TfliteView(node, self.form, self.size)


#: Input of an operator: a tensor of the running network, a stored one, or nothing.
Value = TfliteView | np.ndarray | None


@dataclass(frozen=True)
class TfliteSite(OperatorInputs[TfliteView]):
    """One operator with what it reads."""

    code: str  # Its name.
    name: str  # Of what it writes.
    settings: Mapping[str, Any]  # Its settings; those that are left out are zero.
    results: int  # How many tensors it writes.
    builder: Builder  # Builder that its rule writes into.
    kinds: Sequence[str] = field(default_factory=list)  # Element types of what it writes, by numpy's names.

    def view(self, i: int) -> TfliteView:
        """Input `i` as a tensor of the network, a stored one among its parameters."""
        if (value := self.value(i)) is None:
            raise StretchError(f"it has no input {i}")
        return value if isinstance(value, TfliteView) else TfliteView(self.builder.add_tensor(value, f"{self.name}_{i}"))

    def shape(self, i: int = 0) -> tuple[int, ...]:
        """Of an input, in the file."""
        value = self.value(i)
        return tuple(value.shape) if isinstance(value, np.ndarray) else self.view(i).shape

    def in_file_order(self, i: int = 0) -> fx.Node:
        """Input `i` with its axes as in the file."""
        return in_file_order(self.builder, self.view(i))

    def image(self, i: int = 0) -> fx.Node:
        """Input `i`, N×H×W×C in the file, as N×C×H×W."""
        need(len(self.shape(i)) == 4, f"it reads a tensor of shape {list(self.shape(i))}, which is no image")
        value = _as_image(self, i)
        return value if isinstance(value, fx.Node) else self.builder.add_tensor(value, f"{self.name}_{i}")

    def setting(self, name: str) -> int:
        """A setting that is a whole number."""
        return int(self.settings.get(name, 0))

    def onnx(self, op: str, inputs: Sequence[fx.Node | np.ndarray | None], results: int = 1, **attrs: Any) -> Any:
        """Return the result of an ONNX operator for these."""
        return ONNX[op](OnnxSite(inputs, op, self.name, attrs, results, _OPSET, self.builder))

    def operands(self, values: Sequence[fx.Node | np.ndarray]) -> list[Any]:
        """Operands as functions of torch combine them: a single stored number is a number."""
        arrays = {i: value for i, value in enumerate(values) if isinstance(value, np.ndarray)}
        stored = {i: x.item() if x.size == 1 else self.builder.add_tensor(x, f"{self.name}_{i}") for i, x in arrays.items()}
        return [stored.get(i, value) for i, value in enumerate(values)]

    def apply_activation(self, node: fx.Node) -> fx.Node:
        """Apply the activation that is part of the operator to a result."""
        number = self.setting("fused_activation_function")
        if not number:
            return node
        need(number in ACTIVATIONS, f"its activation is number {number}, which torch has not")
        function, *options = ACTIVATIONS[number]
        return self.builder.call(function, node, *options)


#: Activations by their number in the format: a function of torch and its arguments.
ACTIVATIONS: dict[int, tuple[Any, ...]] = {1: (torch.relu,), 2: (torch.clamp, -1.0, 1.0), 3: (F.relu6,), 4: (torch.tanh,)}


def in_file_order(builder: Builder, view: TfliteView) -> fx.Node:
    """A tensor with its axes as in the file."""
    if view.form == "image":
        return permute_axes(builder, view.node, (0, 2, 3, 1))
    if view.form == "row":
        height, width, channels = view.size
        current = shape_of(view.node)
        return rearrange(builder, view.node, (current[0], channels, height, width), (0, 2, 3, 1), current)
    return view.node


def flatten_image(builder: Builder, image: fx.Node) -> TfliteView:
    """An image as one row, in the order that torch's networks have."""
    channels, height, width = shape_of(image)[1:]
    row = builder.call(torch.flatten, image, 1)
    return TfliteView(row) if height * width == 1 or channels == 1 else TfliteView(row, "row", (height, width, channels))


def align_operands(site: TfliteSite, operands: Sequence[int]) -> tuple[list[Any], TfliteView]:
    """Inputs all in one order of axes, stored ones as arrays, and a tensor whose order the result has.

    Where one is an image all are, and axes that some lack stand before the others.
    """
    values = [site.value(i) for i in operands]
    view = [value for value in values if isinstance(value, TfliteView)]
    need(bool(view), "it reads no tensor of the network")
    rank = max(len(item.shape) for item in view)
    single = [isinstance(value, np.ndarray) and value.size == 1 and value.ndim <= rank for value in values]
    if all(item.form == "row" and item.size == view[0].size for item in view) and len(view) + sum(single) == len(values):
        return [value.node if isinstance(value, TfliteView) else value for value in values], view[0]
    images = [item for item in view if item.form == "image"]
    if images and max(len(site.shape(i)) for i in operands) == 4:
        return [value if is_single else _as_image(site, i) for i, value, is_single in zip(operands, values, single, strict=True)], images[0]
    return [
        site.in_file_order(i) if isinstance(value, TfliteView) else value for i, value in zip(operands, values, strict=True)
    ], TfliteView(view[0].node)


def _as_image(site: TfliteSite, i: int) -> Any:
    """An input with four axes, of which the channels are the second."""
    value, shape = site.value(i), site.shape(i)
    padded = (1,) * (4 - len(shape)) + shape
    if isinstance(value, np.ndarray):
        return value.reshape(padded).transpose(0, 3, 1, 2)
    if site.view(i).form == "image":
        return site.view(i).node
    x = site.in_file_order(i)
    return permute_axes(site.builder, x if padded == shape else site.builder.call(torch.reshape, x, padded), (0, 3, 1, 2))


#: Writes what an operator computes, and gives its results.
Rule = Callable[[TfliteSite], TfliteView | list[TfliteView]]

#: Rules by the name of the operator; every file of this package adds its own.
RULES: RuleTable[Rule] = RuleTable()

#: Decorator for the rule of operators of these names.
rule = RULES.add


#: Operators that change no order of axes: behind them it is view which order the input has.
_ANY_ORDER = frozenset({"ADD", "SUB", "MUL", "DIV", "QUANTIZE", "DEQUANTIZE", "CAST", "MAXIMUM", "MINIMUM"})


def read_module(path: str | Path, input_shape: InputShapes | None = None) -> fx.GraphModule:
    """The network in a TFLite file of any converter, in evaluation mode; of several outputs it returns a dictionary by their names.

    Images, N×H×W×C in the file, are N×C×H×W in what it reads and gives. Weights of half precision or of rounded
    numbers become reals of single precision, and operators that round activations are left out. The module states its inputs:
    `stretch.network.models.builder.finish_network`.
    """
    return _TfliteLowering(open_tflite(Path(path)), input_shape).network()


class _TfliteLowering:
    def __init__(self, network: TfliteNetwork, input_shapes: InputShapes | None) -> None:
        self._network = network
        if max(len(network.operators), len(network.tensors), len(network.inputs), len(network.outputs)) > MAX_PARTS:
            raise StretchError(f"{network.path} has more than {MAX_PARTS} operators or tensors, which is no network that can be branched")
        images = [len(network.tensors[i].shape) == 4 and not self._turned_at_once(i) for i in network.inputs]
        self._ends = named_ends(network.path, [self._input_end(i, image) for i, image in zip(network.inputs, images, strict=True)])
        self._shapes = resolve_input_shapes(network.path, self._ends, input_shapes)
        self._builder = Builder(self._shapes)
        self._values: dict[int, Value] = {i: tensor.reals for i, tensor in enumerate(network.tensors) if tensor.stored is not None}
        for i, end, image in zip(network.inputs, self._ends, images, strict=True):
            self._values[i] = TfliteView(self._builder.inputs[end.argument], "image" if image else "file")

    def network(self) -> fx.GraphModule:
        """The network."""
        path = self._network.path
        for operator in self._network.operators:
            with reading(path, self._describe(operator)):
                self._lower(operator)
        returned = by_name(self._builder, [(self._network.tensors[i].name, self._result(i)) for i in self._network.outputs])
        rounded = sum(tensor.quantisation is not None and tensor.stored is None for tensor in self._network.tensors)
        warnings = [f"{path} rounds {rounded} activations to int8: they are reals here, and `stretch export` finds new scales"]
        keys = [key for key, _ in walk_leaves(returned)]
        own = OwnNetwork(
            self._own_file(keys, bool(rounded)),
            [(self._describe(operator), self._output_nodes(operator)) for operator in self._network.operators],
        )
        return finish_network(path, self._builder.finish(returned, "Network"), self._shapes, self._ends, warnings if rounded else [], own)

    def _describe(self, operator: TfliteOperator) -> str:
        """Return how messages name an operator."""
        return f"operator `{self._name(operator)[:80]}` ({operator.code})"

    def _output_nodes(self, operator: TfliteOperator) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Nodes with the results of an operator in the network, and the order of their axes."""
        values = {i: self._values[i] for i in operator.outputs}
        view = {i: value for i, value in values.items() if isinstance(value, TfliteView) and value.form != "row"}
        return {str(i): (value.node.name, _CHANNELS_LAST if value.form == "image" else ()) for i, value in view.items()}

    def _own_file(self, keys: Sequence[str], rounded: bool) -> SourceFile:
        """The ends of the file, and how precisely it computes."""
        ends = []
        for i, name, shape in [
            *((i, end.argument, self._shapes[end.argument]) for i, end in zip(self._network.inputs, self._ends, strict=True)),
            *((i, key, shape_of(self._result(i))) for i, key in zip(self._network.outputs, keys, strict=True)),
        ]:
            tensor, value = self._network.tensors[i], self._values[i]
            order = _CHANNELS_LAST if isinstance(value, TfliteView) and value.form == "image" else ()
            steps = tensor.quantisation
            scale, zero_point = (None, 0) if steps is None else (float(steps.scales[0]), int(steps.zero_points[0]))
            ends.append(SourceTensor(str(i), name, permute_shape(shape, order), tensor.kind, order, scale, zero_point))
        halves = any(tensor.kind == "float16" and tensor.stored is None for tensor in self._network.tensors)
        count = len(self._network.inputs)
        return SourceFile(tuple(ends[:count]), tuple(ends[count:]), "int8" if rounded else "fp16" if halves else "fp32")

    def _result(self, tensor: int) -> fx.Node:
        """Value that the network returns for an output; a stored tensor as it is."""
        value = self._values[tensor]
        if isinstance(value, TfliteView) and value.form == "image":
            return value.node
        if isinstance(value, TfliteView):
            return self._builder.to_reals(in_file_order(self._builder, value))
        return self._builder.add_tensor(np.asarray(value, np.float32), "")

    def _name(self, operator: TfliteOperator) -> str:
        """That of what it writes, without the names that converters join to it."""
        return self._network.tensors[operator.outputs[0]].name.partition(";")[0] if operator.outputs else operator.code

    def _lower(self, operator: TfliteOperator) -> None:
        reads = [None if i is None else self._values[i] for i in operator.inputs]
        kinds = [self._network.tensors[i].kind for i in operator.outputs]
        results = self._results(operator, reads, kinds)
        need(len(results) == len(kinds), f"it writes {len(kinds)} tensors, {len(results)} are known")
        self._values |= dict(zip(operator.outputs, results, strict=True))

    def _results(self, operator: TfliteOperator, reads: list[Value], kinds: list[str]) -> list[Value]:
        if operator.code == "SHAPE" and isinstance(reads[0], TfliteView):
            return [np.array(reads[0].shape, np.int32)]
        rule = RULES.get(operator.code)
        if rule is None and operator.custom:
            raise StretchError(
                "it is a custom operator, which is computed by code outside the file",
                "convert the network with TFLite's own operators alone",
            )
        if rule is None:
            raise StretchError("there is no rule for this operator")
        if not any(isinstance(read, TfliteView) for read in reads):
            return self._compute_constant(operator, reads, kinds)
        return list(self._apply_rule(operator, reads, self._name(operator), self._builder, kinds))

    def _apply_rule(self, operator: TfliteOperator, reads: list[Value], name: str, builder: Builder, kinds: list[str]) -> list[TfliteView]:
        """The results of an operator by its rule, which has to ask for all of its settings that are not as usual."""
        settings = Attributes(operator.settings)
        result = RULES[operator.code](TfliteSite(reads, operator.code, name, settings, len(kinds), builder, kinds))
        settings.check(lambda name: DEFAULTS.get(name, 0), HARMLESS)
        return result if isinstance(result, list) else [result]

    def _compute_constant(self, operator: TfliteOperator, reads: list[Value], kinds: list[str]) -> list[Value]:
        """The results of an operator that reads nothing but stored tensors, computed by its own rule."""
        if operator.code in ("QUANTIZE", "DEQUANTIZE"):
            return [reads[0]]
        builder = Builder((1,))
        computed = [
            TfliteView(builder.add_tensor(read, f"x{i}")) if isinstance(read, np.ndarray) and read.dtype.kind == "f" else read
            for i, read in enumerate(reads)
        ]
        # Whole numbers may be a shape or axes, which rules need to know.
        if not any(isinstance(item, TfliteView) for item in computed) and isinstance(computed[0], np.ndarray):
            computed[0] = TfliteView(builder.add_tensor(computed[0], "x0"))
        return [builder.evaluate(in_file_order(builder, item)) for item in self._apply_rule(operator, computed, "known", builder, kinds)]

    def _turned_at_once(self, tensor: int) -> bool:
        """Whether all that reads a tensor first puts its channels last: then they are second in the file, too."""
        readers = [operator for operator in self._network.operators if tensor in operator.inputs]
        return bool(readers) and all(map(self._turns, readers))

    def _turns(self, operator: TfliteOperator) -> bool:
        if operator.code == "TRANSPOSE" and len(operator.inputs) == 2 and operator.inputs[1] is not None:
            order = self._network.tensors[operator.inputs[1]].stored
            return order is not None and order.ravel().tolist() == [0, 2, 3, 1]
        return operator.code in _ANY_ORDER and len(operator.outputs) == 1 and self._turned_at_once(operator.outputs[0])

    def _input_end(self, tensor: int, image: bool) -> End:
        """The file's statement of an input; an image keeps its channels."""
        start = self._network.tensors[tensor]
        # converters write 1 for a length that is open; a batch of 1 is what is meant
        sizes = [Size(0 if axis in start.opened and n == 1 and axis else n) for axis, n in enumerate(start.shape)]
        if image:
            sizes = [sizes[0], Size(start.shape[3], fixed=3 not in start.opened), *sizes[1:3]]
        readers = [operator for operator in self._network.operators if tensor in operator.inputs]
        kinds = [self._network.tensors[operator.outputs[0]].kind for operator in readers if operator.code == "CAST" and operator.outputs]
        cast = bool(readers) and len(kinds) == len(readers) and set(kinds) <= {"float32", "float16"}
        return End(start.name, sizes, start.kind if start.quantisation is None else "float32", cast)
