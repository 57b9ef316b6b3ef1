"""An ONNX file as a torch network, node by node."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import helper
from torch import fx, nn

from predictors.errors import StretchError
from scheduler.formats.onnx.shapes import RULES as SHAPES
from scheduler.formats.onnx.shapes.refused import REASONS
from stretch.capture.inputs import InputShapes
from stretch.models.builder import Builder, filled, shape_of, turned
from stretch.models.ends import by_name, finished
from stretch.models.onnx.activations import Finder, numbers
from stretch.models.onnx.file import TO_LAST, Source, array, read_source
from stretch.models.onnx.known import by_rule, computed
from stretch.models.onnx.layer_norms import LayerNorms
from stretch.models.onnx.site import ROUNDING, RULES, Result, Site, Value
from stretch.models.onnx.steps import Rounded, Steps, common

#: Nodes that tell the shape of what they read.
_TOLD = ("Shape", "Size")

#: Attributes of ONNX that are tensors, and those that are graphs.
_TENSOR, _GRAPHS = 4, (5, 10)

#: Domains of ONNX's own operators, and one whose operators ONNX Runtime's quantisers write.
_OWN, _RUNTIME = ("", "ai.onnx"), "com.microsoft"

#: What Python, numpy and torch raise for attributes and stored tensors of another kind or size than a rule expects.
_MISFITS = (ValueError, TypeError, KeyError, IndexError, AttributeError, ArithmeticError, RuntimeError, MemoryError)


def read_module(path: str | Path, input_shape: InputShapes | None = None) -> fx.GraphModule:
    """The network in an ONNX file of any exporter, in evaluation mode; of several outputs it returns a dictionary by their names.

    Weights that are stored in int8 become reals, and what rounds activations is left out.

    An image whose channels are last in the file, and which is turned before anything else is done, is N×C×H×W here.
    What the module says of its inputs: `stretch.models.ends.finished`.
    """
    try:
        return _Lowering(read_source(Path(path), input_shape)).network()
    except StretchError as error:
        if error.message.isprintable():
            raise
        # A name from the file may hold line breaks, and signs that terminals obey.
        raise type(error)(_shown(error.message), error.hint) from error


def _shown(text: str) -> str:
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape", "surrogatepass").decode() for sign in text)


class _Lowering:
    def __init__(self, source: Source) -> None:
        self._source = source
        self._builder = Builder(source.shapes)
        self._values: dict[str, Value] = {**source.stored}
        for end in source.ends:
            given = self._builder.inputs[end.argument]
            self._values[end.name] = turned(self._builder, given, TO_LAST) if end.argument in source.last else given
        self._steps: dict[str, Steps] = {}
        self._nodes: dict[str, Any] = {}
        self._numbers = numbers(source.stored)
        self._finder, self._norms = Finder(self._nodes, self._numbers), LayerNorms(self._nodes, self._values)
        self._rounded = 0

    def network(self) -> fx.GraphModule:
        """The network."""
        for i, node in enumerate(self._source.nodes):
            try:
                self._lower(node)
            except (StretchError, *_MISFITS) as error:
                words = (str(error).splitlines() or ["?"])[0][:160]
                reason = error.message if isinstance(error, StretchError) else f"its attributes are not understood ({words})"
                name = node.name or f"{node.op_type}_{i}"
                raise StretchError(
                    f"node `{name[:80]}` ({node.op_type[:60]}) of {self._source.path} cannot be read: {reason}",
                    "export the network without it, or give the module itself as `module:factory`",
                ) from error
        returned = by_name([(name, self._result(name)) for name in self._source.outputs])
        return finished(self._source.path, self._builder, self._source.ends, returned, self._warnings())

    def _result(self, name: str) -> fx.Node:
        """What the network returns as an output of this name; what the file stores as it is."""
        found = self._values.get(name)
        if found is None:
            raise StretchError(f"{self._source.path} returns `{name[:80]}`, which nothing computes")
        return found if isinstance(found, fx.Node) else self._builder.stored(found, name)

    def _warnings(self) -> list[str]:
        """What is other than in the file."""
        path, found = self._source.path, []
        for name in [end.name for end in self._source.ends if end.argument in self._source.last]:
            what = "the input" if len(self._source.ends) == 1 else f"the input `{name[:80]}`"
            found.append(f"{what} of {path} has its channels last and is turned at once: here they are second, as in all networks")
        if self._rounded:
            found.append(f"{path} rounds {self._rounded} activations to int8: they are reals here, and `stretch export` finds new scales")
        return found

    def _lower(self, node: Any) -> None:
        if node.domain not in (*_OWN, _RUNTIME):
            raise StretchError(f"it is of the domain `{node.domain[:60]}`, and only ONNX's own operators are read")
        unknown = next((name for name in node.input if name and name not in self._values), None)
        if unknown is not None:
            raise StretchError(f"it reads `{unknown[:80]}`, which nothing writes before it")
        reads = [self._values[name] if name else None for name in node.input]
        results = self._results(node, reads)
        for name, result in zip(node.output, results, strict=False):
            if name in self._values:
                raise StretchError(f"`{name[:80]}` is written twice")
            if name:
                value = result.node if isinstance(result, Rounded) else result
                self._values[name], self._nodes[name] = value, node
                if isinstance(result, Rounded):
                    self._steps[name] = result.steps
                if isinstance(value, np.ndarray):
                    self._numbers |= numbers({name: value})

    def _results(self, node: Any, reads: list[Value]) -> Sequence[Result]:
        attrs = self._attributes(node)
        told = self._told(node, reads, attrs)
        if told is not None:
            return [told]
        op = node.op_type if node.domain in _OWN else f"{node.domain}.{node.op_type}"
        function = RULES.get(op)
        words = {key: value.decode(errors="replace") if isinstance(value, bytes) else value for key, value in attrs.items()}
        known = [each for each in reads if not isinstance(each, fx.Node)]
        if len(known) == len(reads):
            if function is None or not reads or op in SHAPES or op in ROUNDING:
                return computed(node, known, attrs, self._source.opset)
            return by_rule(function, Site(known, op, "known", words, len(node.output), self._source.opset, Builder((1,))))
        if function is None:
            where = "" if node.domain in _OWN else f" of the domain `{_RUNTIME}`"
            raise StretchError(REASONS.get(op, f"there is no rule for this operator{where}"))
        name = _plain_name(node.name, node.op_type) or node.output[0]
        whole = self._activation(node) or self._layer_norm(node, reads, name)
        if whole is not None:
            return [whole]
        steps = [self._steps.get(each) for each in node.input]
        shared = None if op in ROUNDING else common(op, steps)
        if shared is not None:
            reads = [shared.reals(each) if isinstance(each, np.ndarray) and each.dtype == shared.zero.dtype else each for each in reads]
        made = function(Site(reads, op, name, words, len(node.output), self._source.opset, self._builder, steps))
        results = made if isinstance(made, Sequence) else [made]
        if shared is not None:
            return [Rounded(each, shared) if isinstance(each, fx.Node) and _of_reals(each) else each for each in results]
        self._rounded += "DynamicQuantize" in op or any(isinstance(each, Rounded) for each in results)
        return results

    def _attributes(self, node: Any) -> dict[str, Any]:
        """Attributes by name; stored tensors as arrays."""
        if any(each.type in _GRAPHS or each.ref_attr_name for each in node.attribute):
            raise StretchError("it holds a graph")
        return {
            each.name: array(self._source.path, each.t) if each.type == _TENSOR else helper.get_attribute_value(each)
            for each in node.attribute
        }

    def _told(self, node: Any, reads: list[Value], attrs: dict[str, Any]) -> Value:
        """What a node tells of the shape of a tensor of the network; None for any other node."""
        if node.op_type not in _TOLD or not reads or not isinstance(reads[0], fx.Node):
            return None
        shape = shape_of(reads[0])
        if node.op_type == "Size":
            return np.array(int(np.prod(shape)), np.int64)
        return np.array(shape[attrs.get("start", 0) : attrs.get("end", len(shape))], np.int64)

    def _activation(self, node: Any) -> fx.Node | None:
        """The activation that ends with this node, if several nodes before it are one."""
        if node.op_type not in ("Mul", "Div"):
            return None
        found = self._finder.find(node)
        x = None if found is None else self._values.get(found.x)
        return self._builder.call(found.function, x, **found.settings) if found is not None and isinstance(x, fx.Node) else None

    def _layer_norm(self, node: Any, reads: list[Value], name: str) -> fx.Node | None:
        """The layer norm that ends with this node, if it and nodes before it are one."""
        ranks = [len(shape_of(each)) for each in reads if isinstance(each, fx.Node)]
        found = self._norms.find(node, ranks[0]) if node.op_type == "Add" and ranks else None
        x = None if found is None else self._values.get(found.x)
        if found is None or not isinstance(x, fx.Node) or shape_of(x)[-1:] != found.weight.shape:
            return None
        module = nn.LayerNorm(shape_of(x)[-1:], eps=found.eps)
        return self._builder.module(filled(module, weight=found.weight, bias=found.bias), x, name)


def _of_reals(node: fx.Node) -> bool:
    return bool(node.meta["val"].is_floating_point())


def _plain_name(name: str, op: str) -> str:
    """A node's name without what exporters add to every one: its operator, and repeated parts of its path."""
    parts = [part for part in name.split("/") if part]
    if len(parts) > 1 and parts[-1].startswith(op):
        parts = parts[:-1]
    return "_".join(part for i, part in enumerate(parts) if i + 1 == len(parts) or not parts[i + 1].startswith(f"{part}."))
