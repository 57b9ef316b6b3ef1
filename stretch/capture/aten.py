"""An exported network to operators, ATen node by ATen node."""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import fx, nn

from predictors.errors import StretchError
from predictors.graph import Op, OpGraph
from predictors.operators import kind_of
from predictors.shapes import Shape
from stretch.capture.aten_call import AtenCall, Step, Value
from stretch.capture.aten_rules import RULES, opaque_node


class AtenLowering:
    """Lowers one exported graph.

    Args:
        exported: ATen operators; shapes are in ``meta["val"]`` of its nodes.
        name: Name of the network.
    """

    def __init__(self, exported: fx.Graph, name: str) -> None:
        self._exported, self._name = exported, name
        self._values: dict[fx.Node, Value | tuple[Value, ...]] = {}
        #: Nodes that others stand for, since they were changed in place.
        self._moved: dict[fx.Node, fx.Node] = {}
        self._ops: dict[str, Op] = {}
        self._views: dict[tuple[str, Shape], str] = {}

    def graph(self, given: str, returned: Sequence[str]) -> OpGraph:
        """The operator graph.

        Args:
            given: Name of the node that is the network's input.
            returned: Names of those that are its outputs.

        Raises:
            StretchError: If a shape depends on values, or nothing depends on the input.
        """
        for node in self._exported.nodes:
            if node.op == "placeholder":
                self._values[node] = self._placeholder(node, given)
            elif node.op == "get_attr":
                self._values[node] = Value("", self._shape(node, node.meta.get("val")))
            elif node.op == "call_function":
                self._lower(node)
        return self._finish(returned)

    def _placeholder(self, node: fx.Node, given: str) -> Value:
        shape = self._shape(node, node.meta.get("val"))
        if node.name != given:
            return Value("", shape)
        self._ops["input"] = Op("input", "input", attrs={"shape": shape}, shape=shape)
        return Value("input", shape)

    def _finish(self, returned: Sequence[str]) -> OpGraph:
        """The operators that lead to the outputs; of several outputs one operator that reads them all."""
        by_name = {node.name: node for node in self._exported.nodes}
        outputs = [self._values.get(self._source(by_name[each])) for each in returned]
        ends = [self.reading(value) for value in outputs if isinstance(value, Value) and value.op]
        if not ends:
            raise StretchError(f"`{self._name}` returns nothing that depends on its input", "give a network that reads its input")
        last = ends[0]
        if len(set(ends)) > 1:
            last = self._free_name("outputs")
            shape = self._ops[ends[0]].shape
            self._ops[last] = Op(last, "view", tuple(dict.fromkeys(ends)), {"shape": shape}, shape)
        if last == "input":
            raise StretchError(f"`{self._name}` returns its input: it has no operator", "give a network with layers")
        needed = {last}
        for op in reversed(self._ops.values()):
            if op.name in needed:
                needed.update(op.inputs)
        return OpGraph.build(self._name, [op for op in self._ops.values() if op.name in needed or op.kind == "input"], last)

    def _lower(self, node: fx.Node) -> None:
        """The operators of a call; in place of one that no rule takes, an opaque one."""
        if "getitem" in str(node.target) and isinstance(node.args[0], fx.Node):
            parts = self._values.get(node.args[0])
            if isinstance(parts, tuple) and isinstance(node.args[1], int):
                self._values[node] = self._part(node, parts[node.args[1]])
            return
        found = node.meta.get("val")
        results = [each for each in (found if isinstance(found, tuple | list) else [found]) if isinstance(each, torch.Tensor)]
        if not results:
            return
        shapes = [self._shape(node, each) for each in results]
        call = AtenCall(node, self._given(node), shapes)
        if not call.tensors:
            # It depends on weights alone, and is computed before the network runs.
            made: list[Value] = [Value("", shape) for shape in shapes]
            self._values[node] = tuple(made) if isinstance(found, tuple | list) else made[0]
        else:
            self._values[node] = self._apply(call, isinstance(found, tuple | list))
        schema = getattr(node.target, "_schema", None)
        if schema is not None and schema.is_mutable and node.args and isinstance(node.args[0], fx.Node):
            self._moved[self._source(node.args[0])] = node

    def _apply(self, call: AtenCall, several: bool) -> Value | tuple[Value, ...]:
        rule = RULES.get(call.operator)
        made = rule(call) if rule is not None else None
        if isinstance(made, tuple):
            # Each part is cut out where it is used.
            return made
        if isinstance(made, Value):
            return made
        value = self._emit(call, made) if made is not None else None
        if value is None:
            value = self._emit(call, opaque_node(call))
        if value is None:
            raise StretchError(
                f"cannot capture node `{call.node.name}` ({call.operator}) of `{self._name}`: its shapes {call.shapes} do not fit"
            )
        if not several:
            return value
        return (value, *[Value(value.op, shape) if shape == value.shape else Value("", shape) for shape in call.shapes[1:]])

    def _part(self, node: fx.Node, part: Value) -> Value:
        """One of several results; a piece of a tensor is copied out of it."""
        if part.piece is None:
            return part
        value = self._emit(AtenCall(node, {}, [part.shape]), [part.piece])
        if value is None:
            raise StretchError(f"cannot capture node `{node.name}` of `{self._name}`: a piece of shape {part.shape} does not fit")
        return value

    def _emit(self, call: AtenCall, steps: Sequence[Step]) -> Value | None:
        """Operators in a chain: each but the first reads, before what it states, the one before; None if one does not fit."""
        emitted: list[Op] = []
        last = ""
        for step in steps:
            reads = [*([last] if last else []), *[self.reading(value) for value in step.reads]]
            shapes = [self._ops[each].shape if each in self._ops else emitted[-1].shape for each in reads]
            try:
                shape = kind_of(step.kind).shape(shapes, step.attrs)
            except (ValueError, KeyError, TypeError, IndexError):
                return None
            last = self._operator_name(call.node, {op.name for op in emitted})
            emitted.append(Op(last, step.kind, tuple(reads), step.attrs, shape))
        if not emitted or prod(emitted[-1].shape) != prod(call.shapes[0]):
            return None
        self._ops |= {op.name: op for op in emitted}
        return Value(last, call.shapes[0], base=emitted[-1].shape)

    def reading(self, value: Value) -> str:
        """Name of the operator whose tensor has the value's shape: a view of another, where its own differs."""
        op = self._ops[value.op]
        if op.shape == value.shape:
            return op.name
        known = self._views.get((op.name, value.shape))
        if known is None:
            known = self._views[op.name, value.shape] = self._free_name(f"{op.name}_view")
            self._ops[known] = Op(known, "view", (op.name,), {"shape": value.shape}, value.shape)
        return known

    def _given(self, node: fx.Node) -> dict[str, Any]:
        """The node's arguments by name, those left out at their defaults, values in place of nodes."""
        schema = getattr(node.target, "_schema", None)
        named: dict[str, Any] = {}
        if schema is None:
            named = {str(i): each for i, each in enumerate(node.args)} | dict(node.kwargs)
        else:
            for i, argument in enumerate(schema.arguments):
                default = argument.default_value if argument.has_default_value() else None
                named[argument.name] = node.args[i] if i < len(node.args) else node.kwargs.get(argument.name, default)
        return {key: fx.node.map_aggregate(each, self._known) for key, each in named.items()}

    def _known(self, each: Any) -> Any:
        return self._values.get(self._source(each)) if isinstance(each, fx.Node) else each

    def _source(self, node: fx.Node) -> fx.Node:
        while node in self._moved:
            node = self._moved[node]
        return node

    def _shape(self, node: fx.Node, value: Any) -> Shape:
        if not isinstance(value, torch.Tensor):
            return ()
        if not all(isinstance(n, int) for n in value.shape):
            raise StretchError(
                f"`{self._name}` gives tensors whose size depends on values, from `{node.name}` on",
                "give the part before it as `module:factory`",
            )
        return tuple(value.shape)

    def _operator_name(self, node: fx.Node, more: set[str]) -> str:
        """Path of the module that the node is part of; its own name where that is taken."""
        stack = node.meta.get("nn_module_stack") or {}
        path = next(reversed(stack.values()))[0] if stack else ""
        path = path.replace("L['self'].", "").replace("L['self']", "").replace(".", "_")
        wanted = path if path and path not in self._ops and path not in more else f"{path}_{node.name}".strip("_")
        return self._free_name(wanted, more)

    def _free_name(self, wanted: str, more: set[str] = frozenset()) -> str:  # type: ignore[assignment]
        if hasattr(nn.Module, wanted):
            wanted = f"{wanted}_"
        name, number = wanted, 1
        while name in self._ops or name in more:
            name, number = f"{wanted}_{number}", number + 1
        return name
