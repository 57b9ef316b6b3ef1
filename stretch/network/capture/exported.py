"""Capture any network that torch can export; calls of torch compute the operators that belong to no family.

`torch.export` runs the network once on tensors without data, so that weights and run time do not matter. It returns torch's own
operators (ATen) for any Python code.
"""

import contextlib
import io
import logging
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import fx, nn
from torch.export.graph_signature import OutputKind, TensorArgument

from predictors.errors import StretchError, UsageError, first_line, need
from predictors.graph import Op, OpGraph
from predictors.operators import kind_of
from predictors.shapes import Shape, ints
from stretch.network.capture.aten import AtenCall, AtenValue, named_arguments
from stretch.network.capture.axes import Unsupported
from stretch.network.capture.inputs import Inputs, InputShapes
from stretch.network.capture.map_rules import applied, chain_of, written_out
from stretch.network.capture.maps import Maps
from stretch.network.capture.results import Captured, check_inputs_used, leaves, name_outputs, named_outputs, reachable, unused_inputs
from stretch.network.capture.rules import call_step, cost_of, steps_of
from stretch.network.capture.trace import check_input, evaluation_mode, fold_infinite_padding, is_close
from stretch.operators.capturing import Step, UnsupportedNode, require_supported
from stretch.operators.lowerings import make_module

# The network as ATen operators.


class ExportFailure(StretchError):
    """A network that torch.export refuses."""


#: Higher-order operators that switch a setting around a part of a network, and how many arguments precede the part's graph.
_SWITCHES = {"wrap_with_set_grad_enabled": 1, "wrap_with_autocast": 4}


def inline(program: torch.export.ExportedProgram) -> None:
    """Replace calls of `_SWITCHES` by the nodes of their parts; a part that computes in another precision stays a call.

    The results are unchanged. Gradients of the captured network pass through these nodes.
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
    """Replace a call of a graph by the graph's nodes."""
    arriving = [node for node in part.nodes if node.op == "placeholder"]
    copies: dict[fx.Node, Any] = dict(zip(arriving, arguments, strict=True))
    with graph.inserting_before(call):
        results: Any = graph.graph_copy(part, copies)
    for reader in list(call.users):
        reader.replace_all_uses_with(results[reader.args[1]])
        graph.erase_node(reader)
    graph.erase_node(call)


def input_placeholders(program: torch.export.ExportedProgram, inputs: Inputs, name: str) -> dict[str, str]:
    """Return the name of each input by the name of its node."""
    nodes = program.graph_signature.user_inputs
    need(
        len(nodes) == len(inputs.shapes),
        f"`{name}` needs exactly one input tensor, its forward takes {len(nodes)}",
        "give each of its inputs a shape, as a mapping from their names or with --input NAME=SHAPE",
    )
    return dict(zip(map(str, nodes), inputs.shapes, strict=True))


def returned_nodes(program: torch.export.ExportedProgram) -> list[str | None]:
    """Return the names of the returned nodes, in order; None in place of results that are no tensors."""
    user = [spec.arg for spec in program.graph_signature.output_specs if spec.kind == OutputKind.USER_OUTPUT]
    return [arg.name if isinstance(arg, TensorArgument) else None for arg in user]


def export(module: nn.Module, inputs: Inputs, name: str) -> torch.export.ExportedProgram:
    """Export a network in evaluation mode as ATen operators that change nothing in place through views."""
    first = next(iter(module.parameters()), None)
    device = first.device if first is not None else "cpu"
    args, kwargs = inputs.arguments([torch.zeros(shape, device=device) for shape in inputs.shapes.values()])
    # Warnings of torch and the network during tracing concern neither cost nor the user.
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
    """Suppress the logs and prints of torch for a network that it cannot export, such as whole programs; the error is enough."""
    kept = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(kept)


def _writes_into_view(node: fx.Node) -> bool:
    """Return whether a node changes a tensor that shares its memory with another."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.is_mutable:
        return False
    written = node.args[0] if node.args else None
    source = getattr(getattr(written, "target", None), "_schema", None)
    views = source is not None and any(item.alias_info is not None and not item.alias_info.is_write for item in source.returns)
    return views or schema.name in ("aten::copy_", "aten::index_put_")


def _export_error(module: nn.Module, inputs: Inputs, device: torch.device | str, name: str, error: Exception) -> StretchError:
    """Return the error for a network that cannot be exported; it blames either the inputs or the network."""
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


# Its operators.


#: Operators that create tensors of a given shape and do not read the elements of their inputs.
_FILL_OPERATORS = frozenset({"zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"})


class ExportedLowering:
    """Lowers one exported network to operators that are computed, with their weights.

    Args:
        program: ATen operators; shapes are in ``meta["val"]`` of its nodes.
        strict: Whether a call that cannot be computed is refused; otherwise it becomes an opaque operator, for predictions.

    Attributes:
        weights: Weights by operator and name.
    """

    def __init__(self, program: torch.export.ExportedProgram, name: str, *, strict: bool = True) -> None:
        self._exported, self._name, self._strict = program.graph, name, strict
        self._tensors = _tensors(program)
        self._named = {node.name: node for node in program.graph.nodes}
        self._values: dict[fx.Node, AtenValue | tuple[AtenValue, ...]] = {}
        #: Name of the operator for each returned node.
        self._returned: dict[str, str | None] = {}
        #: Replacements of nodes that were changed in place.
        self._moved: dict[fx.Node, fx.Node] = {}
        self._maps = Maps(self._compute)
        self._ops, self.weights = self._maps.ops, self._maps.weights
        #: Attention chains (products with a softmax between) by their second product; their earlier nodes wait for it.
        self._chains: dict[fx.Node, list[fx.Node]] = {}
        self._waiting: set[fx.Node] = set()

    def graph(self, names: Mapping[str, str], returned: Sequence[str | None]) -> OpGraph:
        """Return the network's operator graph."""
        for node in self._exported.nodes:
            if node.op == "placeholder" and node.name in names:
                shape, name = self._shape(node, node.meta.get("val")), names[node.name]
                self._ops[name] = Op(name, "input", attrs={"shape": shape}, shape=shape)
                self._values[node] = AtenValue(name, shape, dtype=node.meta["val"].dtype)
            elif node.op in ("placeholder", "get_attr"):
                self._values[node] = self._stored_value(node)
            elif node.op == "call_function":
                self._lower(node)
        return self._finish(returned)

    def _stored_value(self, node: fx.Node) -> AtenValue:
        """Return the value of a parameter, a buffer or a constant."""
        tensor = self._tensors.get(node.name)
        if tensor is None:
            # a node that reads it is refused
            return AtenValue("", self._shape(node, node.meta.get("val")))
        return AtenValue("", tuple(tensor.shape), dtype=tensor.dtype, tensor=tensor, learned=isinstance(tensor, nn.Parameter))

    def _finish(self, returned: Sequence[str | None]) -> OpGraph:
        """Return the graph of the operators that lead to the outputs; the only remaining part of an operator takes the operator's name."""
        inputs = [op.name for op in self._ops.values() if op.kind == "input"]
        ends = list(dict.fromkeys(name for name in map(self.result, returned) if name is not None))
        need(bool(ends), f"`{self._name}` returns nothing that depends on its input", "give a network that reads its input")
        outputs = [name for name in ends if name not in inputs]
        need(bool(outputs), f"`{self._name}` returns its input: it has no operator", "give a network with layers")
        ops = self._reachable_ops(outputs)
        present = {op.name for op in ops}
        remaining_parts = [(built, whole) for built, (whole, _) in self._maps.instead.items() if built in present and whole not in present]
        alone = Counter(whole for _, whole in remaining_parts)
        names = {built: whole for built, whole in remaining_parts if alone[whole] == 1}
        self.weights |= {whole: self.weights.pop(built) for built, whole in names.items() if built in self.weights}
        self._returned = {node: names.get(name, name) if name else None for node, name in self._returned.items()}
        renamed = [replace(op, name=names.get(op.name, op.name), inputs=tuple(names.get(item, item) for item in op.inputs)) for op in ops]
        graph = OpGraph.build(self._name, renamed, [names.get(output, output) for output in outputs])
        check_inputs_used(graph)
        return graph

    def _reachable_ops(self, outputs: Sequence[str]) -> list[Op]:
        """Return the operators that lead to the outputs; parts of a tensor that is also computed whole are cut out of it."""
        while True:
            kept = reachable(list(self._ops.values()), outputs)
            needed = {op.name for op in kept}
            twice = [name for name, (whole, _) in self._maps.instead.items() if name in needed and whole in needed]
            for name in twice:
                _, self._ops[name] = self._maps.instead.pop(name)
                self.weights.pop(name, None)
            if not twice:
                return fold_infinite_padding(kept)

    def result(self, node: str | None) -> str | None:
        """Return the operator or input that gives a node's tensor; None for a constant, or if the node is no tensor."""
        if node is None:
            return None
        if node not in self._returned:
            value = self._values.get(self._source(self._named[node]))
            self._returned[node] = self._maps.reading(value) if isinstance(value, AtenValue) and value.op else None
        return self._returned[node]

    def _lower(self, node: fx.Node) -> None:
        """Lower a call, or the whole attention once its last call is reached."""
        if node in self._waiting:
            return
        if node not in self._chains:
            chain = chain_of(node)
            if chain:
                self._chains[chain[-1]] = chain
                self._waiting.update(chain[:-1])
            else:
                self._lower_call(node)
            return
        calls = [AtenCall(item, self._arguments(item), [self._shape(item, item.meta["val"])]) for item in self._chains[node]]
        with suppress(Unsupported):
            self._values[node] = replace(written_out(self._maps, calls), dtype=node.meta["val"].dtype)
            return
        for item in self._chains[node]:
            self._lower_call(item)

    def _lower_call(self, node: fx.Node) -> None:
        """Lower a call; a call that no rule covers becomes an opaque operator."""
        if "getitem" in str(node.target) and isinstance(node.args[0], fx.Node):
            parts = self._values.get(node.args[0])
            # a part that nobody reads may be missing
            if isinstance(parts, tuple) and isinstance(node.args[1], int) and node.args[1] < len(parts):
                self._values[node] = self._tuple_element(node, parts[node.args[1]])
            return
        value = node.meta.get("val")
        results = [item for item in (value if isinstance(value, tuple | list) else [value]) if isinstance(item, torch.Tensor)]
        if not results:
            return
        shapes = [self._shape(node, result) for result in results]
        unknown = next((item for item in node.all_input_nodes if self._source(item) not in self._values), None)
        if unknown is not None:
            raise StretchError(f"cannot capture node `{node.name}` of `{self._name}`: it reads `{unknown.name}`, which is no tensor")
        call = AtenCall(node, self._arguments(node), shapes)
        try:
            applied = self._apply(call)
        except UnsupportedNode as error:
            raise StretchError(f"cannot capture node `{call.node.name}` of `{self._name}`: {error}") from error
        typed = tuple(replace(item, dtype=result.dtype) for item, result in zip(applied, results, strict=False))
        self._values[node] = typed if isinstance(value, tuple | list) else typed[0]
        schema = getattr(node.target, "_schema", None)
        if schema is not None and schema.is_mutable and node.args and isinstance(node.args[0], fx.Node):
            self._moved[self._source(node.args[0])] = node

    def _apply(self, call: AtenCall) -> tuple[AtenValue, ...]:
        """Return the results of a call by the rules."""
        if all(0 in shape for shape in call.shapes):
            return tuple(map(_empty_value, call.shapes))
        if not call.tensors or call.operator in _FILL_OPERATORS:
            return self._constant(call)
        with suppress(Unsupported):
            built = applied(self._maps, call)
            return (built,) if isinstance(built, AtenValue) else built
        several = isinstance(call.node.meta["val"], tuple | list)
        return self._compute(replace(call, arguments={name: self._in_order(item) for name, item in call.arguments.items()}), several)

    def _constant(self, call: AtenCall) -> tuple[AtenValue, ...]:
        """Compute a call on weights or shapes alone, before the network runs."""
        target: Any = call.node.target
        learned = not call.tensors and any(value.learned for value in call.values)

        def stored(argument: Any) -> Any:
            value = self._to_values(argument)
            if not isinstance(value, AtenValue):
                return value
            # only the shape of a computed tensor counts
            return torch.zeros(value.shape, dtype=value.dtype) if value.op else value.tensor

        args, kwargs = fx.node.map_aggregate((call.node.args, call.node.kwargs), stored)
        with torch.no_grad():
            result = target(*args, **kwargs)
        return tuple(
            AtenValue("", tuple(item.shape), dtype=item.dtype, tensor=item, learned=learned and item.is_floating_point())
            for item in (result if isinstance(result, tuple | list) else [result])
        )

    def _in_order(self, argument: Any) -> Any:
        if isinstance(argument, list | tuple):
            return [self._in_order(item) for item in argument]
        return self._maps.in_order(argument) if isinstance(argument, AtenValue) else argument

    def _compute(self, call: AtenCall, several: bool = False) -> tuple[AtenValue, ...]:
        """Return the results of a call whose tensors have their elements in the operators' order."""
        indices = [reader.args[1] for reader in call.node.users if reader.users] if several else [0]
        read = {number for number in indices if isinstance(number, int)}
        numbers = sorted(number for number in read if 0 not in call.shapes[number])
        try:
            require_supported(hasattr(call.node.target, "_schema"), f"`{call.node.target}` is no operator of torch")
            built = steps_of(call)
            if isinstance(built, AtenValue | tuple):
                return built if isinstance(built, tuple) else (built,)
            assert built is not None
            if numbers not in ([], [0]):
                built = [call_step(call, built, numbers)]
        except UnsupportedNode:
            if self._strict:
                raise
            built, numbers = [cost_of(call, None)], [0]
        shape = call.shapes[0] if len(numbers) < 2 else ints(built[0].attrs, "shape")
        whole = self._emit(replace(call, shapes=[call.shapes[numbers[0]] if len(numbers) == 1 else shape]), built)
        if whole is None:
            raise UnsupportedNode(f"its shapes {call.shapes} do not fit")
        return tuple(whole if numbers in ([], [number]) else _result_of(whole, call, numbers, number) for number in range(len(call.shapes)))

    def _tuple_element(self, node: fx.Node, part: AtenValue) -> AtenValue:
        """Return one of several results; a piece of a tensor is copied out."""
        if 0 in part.shape:
            return _empty_value(part.shape)
        if part.piece is None:
            return part
        value = self._emit(AtenCall(node, {}, [part.shape]), [part.piece])
        if value is None:
            raise StretchError(f"cannot capture node `{node.name}` of `{self._name}`: a piece of shape {part.shape} does not fit")
        return replace(value, dtype=part.dtype)

    def _emit(self, call: AtenCall, steps: Sequence[Step]) -> AtenValue | None:
        """Emit operators in a chain: each after the first reads the one before, then its stated inputs; None if one does not fit."""
        emitted: list[Op] = []
        weights: dict[str, dict[str, torch.Tensor]] = {}
        for step in steps:
            reads = [*(op.name for op in emitted[-1:]), *map(self._maps.reading, step.reads)]
            shapes = [self._ops[read].shape if read in self._ops else emitted[-1].shape for read in reads]
            try:
                shape = kind_of(step.kind).shape(shapes, step.attrs)
            except (ValueError, KeyError, TypeError, IndexError):
                return None
            name = self._maps.name_of(call, {op.name for op in emitted})
            emitted.append(Op(name, step.kind, tuple(reads), step.attrs, shape))
            weights[name] = dict(step.weights or {})
        if prod(emitted[-1].shape) != prod(call.shapes[0]):
            return None
        self._ops |= {op.name: op for op in emitted}
        self.weights |= {name: weight for name, weight in weights.items() if weight}
        return AtenValue(emitted[-1].name, call.shapes[0], base=emitted[-1].shape)

    def _arguments(self, node: fx.Node) -> dict[str, Any]:
        """Return the node's arguments by name, with defaults for missing ones and values in place of nodes."""
        mapped = {key: fx.node.map_aggregate(item, self._to_values) for key, item in named_arguments(node).items()}
        for key, item in mapped.items():
            if isinstance(item, list):
                # a tensor without elements adds nothing to a concatenation
                mapped[key] = [value for value in item if not (isinstance(value, AtenValue) and 0 in value.shape)] or item
        return mapped

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


def _result_of(whole: AtenValue, call: AtenCall, numbers: Sequence[int], number: int) -> AtenValue:
    """Return one of several results that are stored one after another in a tensor; a result that nobody reads has no operator."""
    shape, start = call.shapes[number], sum(prod(call.shapes[earlier]) for earlier in numbers if earlier < number)
    piece = Step("slice", {"start": start, "stop": start + prod(shape)}, (whole,))
    return AtenValue(whole.op, shape, piece=piece) if number in numbers else AtenValue("", shape)


def _empty_value(shape: Shape) -> AtenValue:
    """Return a tensor without elements, which no operator needs to compute."""
    return AtenValue("", shape, tensor=torch.empty(shape))


def _tensors(program: torch.export.ExportedProgram) -> dict[str, torch.Tensor]:
    """Return the parameters, buffers and constants by the names of their nodes."""
    signature = program.graph_signature
    stored: dict[str, Any] = {**program.constants, **program.state_dict}
    named = signature.inputs_to_parameters | signature.inputs_to_buffers | signature.inputs_to_lifted_tensor_constants
    return {node: stored[name] for node, name in named.items() if isinstance(stored.get(name), torch.Tensor)}


def capture_exported(module: nn.Module, input_shape: InputShapes | Inputs = (1, 3, 224, 224), name: str | None = None) -> OpGraph:
    """Capture the operator graph of a network for predictions, by `torch.export`; it may have operators that cannot be computed.

    Args:
        module: A network of tensors; it keeps its training or evaluation mode.
        input_shape: As in `stretch.network.capture.capture`.
    """
    name, arguments = name or type(module).__name__, Inputs.of(input_shape, module)
    with evaluation_mode(module):
        program = export(module, arguments, name)
        placeholders = input_placeholders(program, arguments, name)
        return ExportedLowering(program, name, strict=False).graph(placeholders, returned_nodes(program))


def capture_runnable(module: nn.Module, input_shape: InputShapes | Inputs, name: str, refusal: str = "") -> Captured:
    """Capture the operator graph of a network and its weights, by `torch.export`."""
    arguments = Inputs.of(input_shape, module)
    with evaluation_mode(module):
        program = export(module, arguments, name)
        lowering, outputs = ExportedLowering(program, name), returned_nodes(program)
        graph = lowering.graph(input_placeholders(program, arguments, name), outputs)
        weights = {op.name: lowering.weights[op.name] for op in graph.ops if op.name in lowering.weights}
        with torch.no_grad():
            want = arguments.call(module, arguments.random())
        need(
            len(leaves(want)) == len(outputs),
            f"`{name}` returns a {type(want).__name__} that torch.export sees in another form",
            "let its forward return tensors in tuples, lists and dictionaries",
        )
        returned = name_outputs(want, list(map(lowering.result, outputs)))
        warnings = unused_inputs(returned, [op.name for op in graph.inputs])
        captured = Captured(graph, weights, module, refusal, returned, tuple(warnings))
        _check(captured, arguments, want)
    return captured


def _check(captured: Captured, inputs: Inputs, want: Any) -> None:
    """Check that a captured graph computes the network's results, so that it is never silently wrong."""
    results = {result.name for result in captured.returned.results}
    with torch.no_grad():
        values = dict(zip(inputs.shapes, inputs.random(), strict=True))
        unread = {name: len(readers) for name, readers in captured.graph.consumers.items()}
        for op in captured.graph.ops:
            if op.kind != "input":
                values[op.name] = _module(captured, op)(*(values[item] for item in op.inputs))
            for item in dict.fromkeys(op.inputs):
                unread[item] -= 1
                if not unread[item] and item not in results:
                    del values[item]
    need(
        all(is_close(values[name], expected) for name, expected in named_outputs(want, captured.returned)),
        f"`{captured.graph.name}` computes something else when it is exported by torch",
        "its forward must not draw random numbers in evaluation, nor depend on values of its input",
    )


def _module(captured: Captured, op: Op) -> nn.Module:
    """Build the module that computes an operator, with the network's own weights."""
    with torch.device("meta"):
        module = make_module(op, captured.graph.input_shapes(op)).eval()
    module.load_state_dict(captured.weights.get(op.name, {}), strict=False, assign=True)
    return module
