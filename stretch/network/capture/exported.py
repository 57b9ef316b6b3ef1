"""Any network that torch can export to an operator graph for predictions: operators of no kind of ours are opaque.

`torch.export` runs the network once on tensors without data, so that neither
weights nor time matter, and records torch's own operators (ATen), whatever
Python did in between. They become operators one by one.
"""

import contextlib
import io
import logging
import warnings
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import fx, nn
from torch.export.graph_signature import OutputKind, TensorArgument

from predictors.errors import StretchError, UsageError, first_line, need
from predictors.graph import Op, OpGraph, unique_name
from predictors.operators import kind_of
from predictors.shapes import Shape
from stretch.network.capture.aten import RULES, AtenCall, AtenStep, AtenValue, opaque_node
from stretch.network.capture.inputs import Inputs, InputShapes
from stretch.network.capture.results import check_inputs_used, reachable
from stretch.network.capture.trace import check_input, evaluation_mode


class ExportFailure(StretchError):
    """A network that torch.export refuses."""


class AtenLowering:
    """Lowers one exported graph.

    Args:
        exported: ATen operators; shapes are in ``meta["val"]`` of its nodes.

    Attributes:
        weights: Per operator, its weights by name, where they are looked at.
    """

    def __init__(self, exported: fx.Graph, name: str) -> None:
        self._exported, self._name = exported, name
        self._named = {node.name: node for node in exported.nodes}
        self._values: dict[fx.Node, AtenValue | tuple[AtenValue, ...]] = {}
        #: Operator of each node that is returned.
        self._returned: dict[str, str | None] = {}
        #: Nodes and their replacements, since they were changed in place.
        self._moved: dict[fx.Node, fx.Node] = {}
        self._ops: dict[str, Op] = {}
        self.weights: dict[str, dict[str, torch.Tensor]] = {}
        self._views: dict[tuple[str, Shape], str] = {}

    def graph(self, names: Mapping[str, str], returned: Sequence[str]) -> OpGraph:
        """The operator graph."""
        for node in self._exported.nodes:
            if node.op == "placeholder":
                self._values[node] = self._placeholder(node, names)
            elif node.op == "get_attr":
                self._values[node] = self._extra_input(node)
            elif node.op == "call_function":
                self._lower(node)
        return self._finish(returned)

    def _placeholder(self, node: fx.Node, names: Mapping[str, str]) -> AtenValue:
        if node.name not in names:
            return self._extra_input(node)
        shape, name = self._shape(node, node.meta.get("val")), names[node.name]
        self._ops[name] = Op(name, "input", attrs={"shape": shape}, shape=shape)
        return AtenValue(name, shape, dtype=node.meta["val"].dtype)

    def _extra_input(self, node: fx.Node) -> AtenValue:
        """A parameter, a buffer or a constant."""
        return AtenValue("", self._shape(node, node.meta.get("val")))

    def _finish(self, returned: Sequence[str]) -> OpGraph:
        """The operators that lead to the outputs."""
        inputs = [op.name for op in self._ops.values() if op.kind == "input"]
        ends = list(dict.fromkeys(name for name in map(self.result, returned) if name is not None))
        need(bool(ends), f"`{self._name}` returns nothing that depends on its input", "give a network that reads its input")
        outputs = [name for name in ends if name not in inputs]
        need(bool(outputs), f"`{self._name}` returns its input: it has no operator", "give a network with layers")
        graph = OpGraph.build(self._name, self._reachable_ops(outputs), outputs)
        check_inputs_used(graph)
        return graph

    def _reachable_ops(self, outputs: Sequence[str]) -> list[Op]:
        """Operators that lead to outputs."""
        return reachable(list(self._ops.values()), outputs)

    def result(self, node: str) -> str | None:
        """The operator, or the input, whose tensor a node's is; None of one that depends on weights alone."""
        if node not in self._returned:
            value = self._values.get(self._source(self._named[node]))
            self._returned[node] = self.reading(value) if isinstance(value, AtenValue) and value.op else None
        return self._returned[node]

    def _lower(self, node: fx.Node) -> None:
        """The operators of a call; in place of one that no rule takes, an opaque one."""
        if "getitem" in str(node.target) and isinstance(node.args[0], fx.Node):
            parts = self._values.get(node.args[0])
            # what nobody reads may be missing
            if isinstance(parts, tuple) and isinstance(node.args[1], int) and node.args[1] < len(parts):
                self._values[node] = self._tuple_element(node, parts[node.args[1]])
            return
        value = node.meta.get("val")
        results = [item for item in (value if isinstance(value, tuple | list) else [value]) if isinstance(item, torch.Tensor)]
        if not results:
            return
        shapes = [self._shape(node, result) for result in results]
        call = AtenCall(node, self._call_arguments(node), shapes)
        if all(0 in shape for shape in shapes):
            applied = tuple(map(_empty_value, shapes))
        else:
            applied = self._apply(call) if call.tensors else self._constant(call)
        typed = tuple(replace(item, dtype=result.dtype) for item, result in zip(applied, results, strict=False))
        self._values[node] = typed if isinstance(value, tuple | list) else typed[0]
        schema = getattr(node.target, "_schema", None)
        if schema is not None and schema.is_mutable and node.args and isinstance(node.args[0], fx.Node):
            self._moved[self._source(node.args[0])] = node

    def _constant(self, call: AtenCall) -> tuple[AtenValue, ...]:
        """Values that depend on weights alone, and are computed before the network runs."""
        return tuple(AtenValue("", shape) for shape in call.shapes)

    def _apply(self, call: AtenCall) -> tuple[AtenValue, ...]:
        rule = RULES.get(call.operator)
        built = rule(call) if rule is not None else None
        if isinstance(built, AtenValue | tuple):
            # each of several parts is cut out where it is used
            return built if isinstance(built, tuple) else (built,)
        value = (None if built is None else self._emit(call, built)) or self._emit(call, [opaque_node(call)])
        if value is None:
            raise StretchError(
                f"cannot capture node `{call.node.name}` ({call.operator}) of `{self._name}`: its shapes {call.shapes} do not fit"
            )
        return (value, *[AtenValue(value.op, shape) if shape == value.shape else AtenValue("", shape) for shape in call.shapes[1:]])

    def _tuple_element(self, node: fx.Node, part: AtenValue) -> AtenValue:
        """One of several results; a piece of a tensor is copied out of it."""
        if 0 in part.shape:
            return _empty_value(part.shape)
        if part.piece is None:
            return part
        value = self._emit(AtenCall(node, {}, [part.shape]), [part.piece])
        if value is None:
            raise StretchError(f"cannot capture node `{node.name}` of `{self._name}`: a piece of shape {part.shape} does not fit")
        return replace(value, dtype=part.dtype)

    def _emit(self, call: AtenCall, steps: Sequence[AtenStep]) -> AtenValue | None:
        """Operators in a chain: each but the first reads, before what it states, the one before; None if one does not fit."""
        emitted: list[Op] = []
        weights: dict[str, dict[str, torch.Tensor]] = {}
        last = ""
        for step in steps:
            reads = [*([last] if last else []), *[self.reading(value) for value in step.reads]]
            shapes = [self._ops[read].shape if read in self._ops else emitted[-1].shape for read in reads]
            try:
                shape = kind_of(step.kind).shape(shapes, step.attrs)
            except (ValueError, KeyError, TypeError, IndexError):
                return None
            last = self._operator_name(call.node, {op.name for op in emitted})
            emitted.append(Op(last, step.kind, tuple(reads), step.attrs, shape))
            weights[last] = dict(step.weights)
        if not emitted or prod(emitted[-1].shape) != prod(call.shapes[0]):
            return None
        self._ops |= {op.name: op for op in emitted}
        self.weights |= {name: weight for name, weight in weights.items() if weight}
        return AtenValue(last, call.shapes[0], base=emitted[-1].shape)

    def reading(self, value: AtenValue) -> str:
        """Name of the operator whose tensor has the value's shape: a view of another, where its own differs."""
        op = self._ops[value.op]
        if op.shape == value.shape:
            return op.name
        view = self._views.get((op.name, value.shape))
        if view is None:
            view = self._views[op.name, value.shape] = self._free_name(f"{op.name}_view")
            self._ops[view] = Op(view, "view", (op.name,), {"shape": value.shape}, value.shape)
        return view

    def _call_arguments(self, node: fx.Node) -> dict[str, Any]:
        """The node's arguments by name, those left out at their defaults, values in place of nodes."""
        schema = getattr(node.target, "_schema", None)
        named: dict[str, Any] = {}
        if schema is None:
            named = {str(i): arg for i, arg in enumerate(node.args)} | dict(node.kwargs)
        else:
            for i, argument in enumerate(schema.arguments):
                default = argument.default_value if argument.has_default_value() else None
                named[argument.name] = node.args[i] if i < len(node.args) else node.kwargs.get(argument.name, default)
        mapped = {key: fx.node.map_aggregate(item, self._to_values) for key, item in named.items()}
        # joined to others, a tensor without elements adds nothing
        return {key: _drop_empty_lists(item) if isinstance(item, list) else item for key, item in mapped.items()}

    def _to_values(self, item: Any) -> Any:
        return self._values.get(self._source(item)) if isinstance(item, fx.Node) else item

    def _source(self, node: fx.Node) -> fx.Node:
        while node in self._moved:
            node = self._moved[node]
        return node

    def _shape(self, node: fx.Node, value: Any) -> Shape:
        if not isinstance(value, torch.Tensor):
            return ()
        need(
            all(isinstance(n, int) for n in value.shape),
            f"`{self._name}` gives tensors whose size depends on values, from `{node.name}` on",
            "give the part before it as `module:factory`",
        )
        return tuple(value.shape)

    def _operator_name(self, node: fx.Node, taken: set[str]) -> str:
        """Path of the module that the node is part of; its own name where that is taken."""
        stack = node.meta.get("nn_module_stack") or {}
        path = next(reversed(stack.values()))[0] if stack else ""
        path = path.replace("L['self'].", "").replace("L['self']", "").replace(".", "_")
        preferred = path if path and path not in self._ops and path not in taken else f"{path}_{node.name}".strip("_")
        return self._free_name(preferred, taken)

    def _free_name(self, preferred: str, taken: Container[str] = ()) -> str:
        if hasattr(nn.Module, preferred):
            preferred = f"{preferred}_"
        return unique_name(preferred, lambda name: name in self._ops or name in taken)


def _empty_value(shape: Shape) -> AtenValue:
    """A tensor without elements, which no operator need compute."""
    return AtenValue("", shape, tensor=torch.empty(shape))


def _drop_empty_lists(item: list[Any]) -> list[Any]:
    """A list without tensors that have no elements, unless there are no others."""
    return [value for value in item if not (isinstance(value, AtenValue) and 0 in value.shape)] or item


#: Higher-order operators of such parts, and how many arguments stand before the part's graph.
_SWITCHES = {"wrap_with_set_grad_enabled": 1, "wrap_with_autocast": 4}


def inline(program: torch.export.ExportedProgram) -> None:
    """Put the nodes of such parts in place of the calls; one that computes in another precision stays as it is.

    Their results are the same. Gradients of the captured network pass through them.
    """
    module = program.graph_module
    for node in list(module.graph.nodes):
        before = _SWITCHES.get(getattr(node.target, "__name__", "")) if node.op == "call_function" else None
        if before is None or (before > 1 and node.args[2]):
            continue
        named = node.args[before]
        part = module.get_submodule(str(named.target))
        assert isinstance(part, fx.GraphModule)
        _replace(module.graph, node, part.graph, node.args[before + 1 :])
        if not named.users:
            module.graph.erase_node(named)


def _replace(graph: fx.Graph, call: fx.Node, part: fx.Graph, arguments: tuple[Any, ...]) -> None:
    """The nodes of a graph in place of its call."""
    arriving = [node for node in part.nodes if node.op == "placeholder"]
    copies: dict[fx.Node, Any] = dict(zip(arriving, arguments, strict=True))
    with graph.inserting_before(call):
        results: Any = graph.graph_copy(part, copies)
    for reader in list(call.users):
        reader.replace_all_uses_with(results[reader.args[1]])
        graph.erase_node(reader)
    graph.erase_node(call)


def capture_exported(module: nn.Module, input_shape: InputShapes | Inputs = (1, 3, 224, 224), name: str | None = None) -> OpGraph:
    """The operator graph of a network for predictions, by `torch.export`.

    Args:
        module: A network of tensors; it is left in the mode it was in, and its weights are not looked at.
        input_shape: As of `stretch.network.capture.capture`.
    """
    name, arguments = name or type(module).__name__, Inputs.of(input_shape, module)
    with evaluation_mode(module):
        program = export(module, arguments, name)
    outputs = [returned_node for returned_node in returned_nodes(program) if returned_node is not None]
    return AtenLowering(program.graph, name).graph(input_placeholders(program, arguments, name), outputs)


def input_placeholders(program: torch.export.ExportedProgram, inputs: Inputs, name: str) -> dict[str, str]:
    """Return the names of the nodes for the inputs, and the names of the inputs."""
    nodes = program.graph_signature.user_inputs
    need(
        len(nodes) == len(inputs.shapes),
        f"`{name}` needs exactly one input tensor, its forward takes {len(nodes)}",
        "give each of its inputs a shape, as a mapping from their names or with --input NAME=SHAPE",
    )
    return dict(zip(map(str, nodes), inputs.shapes, strict=True))


def returned_nodes(program: torch.export.ExportedProgram) -> list[str | None]:
    """Names of the nodes that are returned, in order; None in place of what is no tensor."""
    user = [spec.arg for spec in program.graph_signature.output_specs if spec.kind == OutputKind.USER_OUTPUT]
    return [arg.name if isinstance(arg, TensorArgument) else None for arg in user]


def export(module: nn.Module, inputs: Inputs, name: str) -> torch.export.ExportedProgram:
    """A network in evaluation mode as ATen operators that change nothing in place through views."""
    first = next(iter(module.parameters()), None)
    device = first.device if first is not None else "cpu"
    args, kwargs = inputs.arguments([torch.zeros(shape, device=device) for shape in inputs.shapes.values()])
    # Warnings of torch and networks while they are traced concern neither cost nor the user.
    with warnings.catch_warnings(), _silence_logs():
        warnings.simplefilter("ignore")
        try:
            with torch.no_grad():
                program = torch.export.export(module, args, kwargs, strict=False)
            inline(program)
            return program.run_decompositions({}) if any(map(_writes_into_view, program.graph.nodes)) else program
        except Exception as error:
            raise _export_error(module, inputs, device, name, error) from error


@contextlib.contextmanager
def _silence_logs() -> Iterator[None]:
    """Without what torch logs and prints of a network that it cannot export, whole programs among it: the error says it."""
    kept = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(kept)


def _writes_into_view(node: fx.Node) -> bool:
    """Whether a node changes a tensor that shares its memory with another."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.is_mutable:
        return False
    written = node.args[0] if node.args else None
    source = getattr(getattr(written, "target", None), "_schema", None)
    views = source is not None and any(item.alias_info is not None and not item.alias_info.is_write for item in source.returns)
    return views or schema.name in ("aten::copy_", "aten::index_put_")


def _export_error(module: nn.Module, inputs: Inputs, device: torch.device | str, name: str, error: Exception) -> StretchError:
    """Message for a network that cannot be exported: whether its inputs are to blame, or the network."""
    reason = first_line(error)
    if str(device) != "meta":
        try:
            check_input(module, inputs, name, device)
        except UsageError as rejected:
            return rejected
    return ExportFailure(
        f"`{name}` cannot be exported by torch.export: {reason}",
        "its forward must not branch on tensor values; give a factory of the part without that as `module:factory`",
    )
