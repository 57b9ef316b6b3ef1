"""Any network that torch can export to an operator graph that computes it: what no family describes is computed by calls of torch."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx, nn

from predictors.errors import StretchError
from predictors.graph import Op, OpGraph
from predictors.operators import kind_of
from stretch.capture.aten import AtenLowering
from stretch.capture.aten_call import AtenCall, Value
from stretch.capture.axes.applied import applied
from stretch.capture.axes.attention import chain_of, written_out
from stretch.capture.axes.maps import Maps
from stretch.capture.captured import Captured
from stretch.capture.exported import export, inputs_of, returned_nodes
from stretch.capture.inputs import Inputs, InputShapes
from stretch.capture.results import differences, left_out
from stretch.capture.runnable_rules import as_call, computed, of_result
from stretch.capture.structure import Result, Returned, keyed, rebuilt
from stretch.capture.trace import agrees, evaluating
from stretch.operators.lowerings import make_module
from stretch.operators.settings import Refusal

#: Make tensors of a given shape, whatever the elements of what they read.
_FILLED = frozenset({"zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"})


class RunnableLowering(AtenLowering):
    """Lowers one exported graph to operators that are computed, with their weights.

    Args:
        exported: ATen operators; shapes are in ``meta["val"]`` of its nodes.
        tensors: Parameters, buffers and constants, by the name of the node that stands for them.
    """

    def __init__(self, exported: fx.Graph, name: str, tensors: Mapping[str, torch.Tensor]) -> None:
        super().__init__(exported, name)
        self._tensors = tensors
        self._maps = Maps(
            self._ops, self.weights, self._free_name, lambda call: self._computed(call, several=False), self.reading, self._name_of
        )
        #: Products with a softmax between, by the second product, and nodes before it, which wait for it.
        self._chains: dict[fx.Node, list[fx.Node]] = {}
        self._waiting: set[fx.Node] = set()

    def _name_of(self, call: AtenCall) -> str:
        return self._operator_name(call.node, set())

    def _given_beside(self, node: fx.Node) -> Value:
        tensor = self._tensors.get(node.name)
        if tensor is None:
            # who reads it is refused
            return super()._given_beside(node)
        return Value("", tuple(tensor.shape), dtype=tensor.dtype, tensor=tensor, learned=isinstance(tensor, nn.Parameter))

    def _constant(self, call: AtenCall, several: bool) -> Value | tuple[Value, ...]:
        target: Any = call.node.target
        learned = any(value.learned for value in call.values)
        args, kwargs = fx.node.map_aggregate((call.node.args, call.node.kwargs), self._tensor)
        with torch.no_grad():
            found = target(*args, **kwargs)
        made = [
            Value("", tuple(each.shape), dtype=each.dtype, tensor=each, learned=learned and each.is_floating_point())
            for each in (found if several else [found])
        ]
        return tuple(made) if several else made[0]

    def _tensor(self, argument: Any) -> Any:
        if not isinstance(argument, fx.Node):
            return argument
        value = self._known(argument)
        return value.tensor if isinstance(value, Value) else value

    def _apply(self, call: AtenCall, several: bool) -> Value | tuple[Value, ...]:
        try:
            if call.operator in _FILLED:
                return self._filled(call)
            return self._results(call, several)
        except Refusal as error:
            raise StretchError(f"cannot capture node `{call.node.name}` of `{self._name}`: {error}") from error

    def _filled(self, call: AtenCall) -> Value:
        """A tensor of which only the shape depends on the input, and that is known."""
        target: Any = call.node.target
        args, kwargs = fx.node.map_aggregate((call.node.args, call.node.kwargs), self._of_shape)
        made = target(*args, **kwargs)
        return Value("", tuple(made.shape), tensor=made)

    def _of_shape(self, argument: Any) -> Any:
        found = self._tensor(argument)
        meta = argument.meta.get("val") if isinstance(argument, fx.Node) else None
        return torch.zeros(tuple(meta.shape), dtype=meta.dtype) if isinstance(meta, torch.Tensor) and found is None else found

    def _lower(self, node: fx.Node) -> None:
        if node in self._waiting:
            return
        chain = self._chains.get(node)
        ahead = chain_of(node) if chain is None else []
        if ahead:
            self._chains[ahead[-1]] = ahead
            self._waiting.update(ahead[:-1])
        elif chain is None:
            super()._lower(node)
        else:
            calls = [AtenCall(each, AtenLowering._given(self, each), [self._shape(each, each.meta["val"])]) for each in chain]
            made = written_out(self._maps, calls)
            if made is not None:
                self._values[node] = replace(made, dtype=node.meta["val"].dtype)
                return
            for each in chain:
                super()._lower(each)

    def _kept(self, outputs: Sequence[str]) -> list[Op]:
        """Operators that lead to outputs; of what is computed whole anyway, parts are not computed anew."""
        while True:
            kept = super()._kept(outputs)
            needed = {op.name for op in kept}
            twice = [name for name, (whole, _) in self._maps.instead.items() if name in needed and whole in needed]
            for name in twice:
                _, self._ops[name] = self._maps.instead.pop(name)
                self.weights.pop(name, None)
            if not twice:
                return kept

    def _finish(self, returned: Sequence[str]) -> OpGraph:
        """The operators that lead to the outputs; what alone is left of an operator has its name."""
        graph = super()._finish(returned)
        left = [(made, whole) for made, (whole, _) in self._maps.instead.items() if made in graph.by_name and whole not in graph.by_name]
        alone = Counter(whole for _, whole in left)
        names = {made: whole for made, whole in left if alone[whole] == 1}
        self.weights |= {whole: self.weights.pop(made) for made, whole in names.items() if made in self.weights}
        self._returned = {node: names.get(name, name) if name else None for node, name in self._returned.items()}
        named = [
            replace(op, name=names.get(op.name, op.name), inputs=tuple(names.get(each, each) for each in op.inputs)) for op in graph.ops
        ]
        return OpGraph.build(graph.name, named, [names.get(each, each) for each in graph.outputs])

    def reading(self, value: Value) -> str:
        """Name of the operator whose tensor has the value's shape, its elements in their order."""
        value = self._maps.plain(value)
        op = self._ops[value.op]
        if value.shape == op.shape[:2] and op.shape[2:] == (1, 1) and not kind_of(op.kind).stated:
            return self._maps.add(f"{op.name}_vector", "flatten", (op.name,), {})
        return super().reading(value)

    def _results(self, call: AtenCall, several: bool) -> Value | tuple[Value, ...]:
        made = applied(self._maps, call)
        if made is None:
            given = {name: self._plain(each) for name, each in call.given.items()}
            return self._computed(replace(call, given=given), several)
        return (made,) if several and isinstance(made, Value) else made

    def _plain(self, argument: Any) -> Any:
        if isinstance(argument, list | tuple):
            return [self._plain(each) for each in argument]
        return self._maps.plain(argument) if isinstance(argument, Value) else argument

    def _computed(self, call: AtenCall, several: bool) -> Value | tuple[Value, ...]:
        if not hasattr(call.node.target, "_schema"):
            raise Refusal(f"`{call.node.target}` is no operator of torch")
        made = computed(call)
        if isinstance(made, Value):
            return (made,) if several else made
        if isinstance(made, tuple):
            return made
        assert made is not None
        if several and any(reader.users and reader.args[1] for reader in call.node.users):
            made = [as_call(call, made)]
            return tuple(Value(made[0].reads[0].op, shape, piece=of_result(made[0], i, shape)) for i, shape in enumerate(call.shapes))
        value = self._emit(call, made)
        if value is None:
            raise Refusal(f"its shapes {call.shapes} do not fit")
        return (value,) if several else value

    def _given(self, node: fx.Node) -> dict[str, Any]:
        unknown = [each for each in node.all_input_nodes if self._source(each) not in self._values]
        if unknown:
            raise StretchError(f"cannot capture node `{node.name}` of `{self._name}`: it reads `{unknown[0].name}`, which is no tensor")
        return super()._given(node)


def capture_runnable(module: nn.Module, input_shape: InputShapes | Inputs, name: str, refusal: str = "") -> Captured:
    """The operator graph of a network and its weights, by `torch.export`."""
    given = Inputs.of(input_shape, module)
    with evaluating(module):
        program = export(module, given, name)
        lowering = RunnableLowering(program.graph, name, _tensors(program))
        outputs = returned_nodes(program)
        graph = lowering.graph(inputs_of(program, given, name), [each for each in outputs if each is not None])
        weights = {op.name: lowering.weights[op.name] for op in graph.ops if op.name in lowering.weights}
        with torch.no_grad():
            want = given.call(module, given.random())
        returned = _returned(want, [None if each is None else lowering.result(each) for each in outputs], name)
        warnings = left_out(returned, [op.name for op in graph.inputs])
        captured = Captured(graph, weights, module, refusal, returned, tuple(warnings))
        _check(captured, given, want)
    return captured


def _returned(output: Any, results: Sequence[str | None], name: str) -> Returned:
    """What a network returns, each tensor with its operator."""
    held = list(keyed(output))
    if len(held) != len(results):
        raise StretchError(
            f"`{name}` returns a {type(output).__name__} that torch.export sees in another form",
            "let its forward return tensors in tuples, lists and dictionaries",
        )
    made = []
    for (key, leaf), result in zip(held, results, strict=True):
        fixed = leaf.detach() if isinstance(leaf, torch.Tensor) else leaf
        made.append(fixed if result is None or not isinstance(leaf, torch.Tensor) else Result(result, key))
    return Returned(rebuilt(output, iter(made)))


def _tensors(program: torch.export.ExportedProgram) -> dict[str, torch.Tensor]:
    """Parameters, buffers and constants by the names of the nodes that stand for them."""
    signature = program.graph_signature
    there: dict[str, Any] = {**program.constants, **program.state_dict}
    named = signature.inputs_to_parameters | signature.inputs_to_buffers | signature.inputs_to_lifted_tensor_constants
    return {node: there[name] for node, name in named.items() if isinstance(there.get(name), torch.Tensor)}


def _check(captured: Captured, given: Inputs, want: Any) -> None:
    """A captured graph is never silently wrong: it gives what the network gives."""
    results = {result.name for result in captured.returned.results}
    with torch.no_grad():
        values = dict(zip(given.shapes, given.random(), strict=True))
        left = {name: len(readers) for name, readers in captured.graph.consumers.items()}
        for op in captured.graph.ops:
            if op.kind != "input":
                values[op.name] = _module(captured, op)(*(values[each] for each in op.inputs))
            for each in dict.fromkeys(op.inputs):
                left[each] -= 1
                if not left[each] and each not in results:
                    del values[each]
    if not all(agrees(got, expected) for got, expected in differences(values, want, captured.returned)):
        raise StretchError(
            f"`{captured.graph.name}` computes something else when it is exported by torch",
            "its forward must not draw random numbers in evaluation, nor depend on values of its input",
        )


def _module(captured: Captured, op: Op) -> nn.Module:
    """What computes an operator, with the network's own weights."""
    with torch.device("meta"):
        module = make_module(op, captured.graph.input_shapes(op)).eval()
    module.load_state_dict(captured.weights.get(op.name, {}), strict=False, assign=True)
    return module
