"""Trace a torch module with `torch.fx` and lower it to an `OpGraph`."""

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from predictors.errors import StretchError, UsageError
from predictors.graph import Op, OpGraph
from stretch.capture.functions import FUNCTIONS, METHODS, Refusal
from stretch.capture.modules import lower_module, lowers

Weights = dict[str, dict[str, torch.Tensor]]


@dataclass(frozen=True)
class Captured:
    """A network as data.

    Args:
        graph: Its operators.
        weights: Per operator, its weights and statistics by name (shapes are
            those of `OpGraph.op_weights`); the tensors are the module's own.
        module: The network itself.
    """

    graph: OpGraph
    weights: Weights
    module: nn.Module


class _Tracer(fx.Tracer):
    """Traces through everything except modules that lower to operators as they are."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return lowers(m) or super().is_leaf_module(m, module_qualified_name)


class _Values(fx.Interpreter):
    """Runs the traced graph once and keeps what is needed: shapes, and values that are not tensors."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.shapes: dict[fx.Node, tuple[int, ...]] = {}
        self.constants: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if isinstance(value, torch.Tensor):
            self.shapes[n] = tuple(value.shape)
        else:
            self.constants[n] = value
        return value


def capture(module: nn.Module, input_shape: Sequence[int] = (1, 3, 224, 224), name: str | None = None) -> Captured:
    """Lower `module` to an operator graph by tracing it in evaluation mode.

    Args:
        module: A network with one tensor in and one tensor out; left in the
            mode it was in.
        input_shape: Batch, channels, height, width.
        name: Name of the network; its class by default.

    Raises:
        UsageError: If the network rejects an input of this shape.
        StretchError: If the network cannot be traced or has an operator that
            is not supported; names the node and the reason.
    """
    name = name or type(module).__name__
    training = module.training
    module.eval()
    try:
        traced = _trace(module, name)
        values = _run(traced, tuple(input_shape), name)
        return _lower(module, traced, values, name)
    finally:
        module.train(training)


def _trace(module: nn.Module, name: str) -> fx.GraphModule:
    tracer = _Tracer(autowrap_functions=(), param_shapes_constant=True)
    try:
        graph = tracer.trace(module)
    except Exception as error:
        # fx raises whatever the module's own code raises; the last line of it says why.
        reason = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
        raise StretchError(
            f"`{name}` cannot be traced by torch.fx: {reason}",
            "its forward must not branch on tensor values; give a factory of the traceable part as `module:factory`",
        ) from error
    return fx.GraphModule(tracer.root, graph)


def _run(traced: fx.GraphModule, shape: tuple[int, ...], name: str) -> _Values:
    inputs = [node for node in traced.graph.nodes if node.op == "placeholder"]
    needed = [node for node in inputs if not node.args]
    if len(needed) != 1:
        names = ", ".join(node.name for node in needed) or "none"
        raise StretchError(f"`{name}` needs exactly one input tensor, its forward takes {names}", "wrap it in a module with one input")
    values = _Values(traced)
    try:
        with torch.no_grad():
            values.run(torch.zeros(shape))
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        size = "×".join(map(str, shape))
        raise UsageError(f"`{name}` rejects an input of {size}: {reason}", "choose another size with --input, such as 3x224x224") from error
    return values


def _lower(module: nn.Module, traced: fx.GraphModule, values: _Values, name: str) -> Captured:
    ops: list[Op] = []
    weights: Weights = {}
    names: dict[fx.Node, str] = {}
    used: set[str] = set()
    output: str | None = None
    for node in traced.graph.nodes:
        if node.op == "output":
            result = node.args[0]
            if not isinstance(result, fx.Node) or result not in names:
                raise StretchError(
                    f"`{name}` returns {type(result).__name__.lower()}, not one tensor", "wrap it in a module that returns one tensor"
                )
            output = names[result]
        elif node.op == "placeholder":
            if node in values.shapes:
                names[node] = "input"
                used.add("input")
                ops.append(Op("input", "input", attrs={"shape": values.shapes[node]}))
        elif node in values.shapes:
            for op, own in _lower_node(traced, node, values, names, used):
                ops.append(op)
                names[node] = op.name
                if own:
                    weights[op.name] = own
    if output is None:
        raise StretchError(f"`{name}` returns nothing")
    graph = OpGraph.build(name, _reachable(ops, output), output)
    _check_shapes(graph, values, names)
    return Captured(graph, {op.name: weights[op.name] for op in graph.ops if op.name in weights}, module)


def _lower_node(
    traced: fx.GraphModule, node: fx.Node, values: _Values, names: dict[fx.Node, str], used: set[str]
) -> list[tuple[Op, dict[str, torch.Tensor]]]:
    """The operators of one fx node, each with its weights.

    Raises:
        StretchError: If the node is not supported; names it and the reason.
    """
    try:
        if node.op == "call_module":
            return _lower_call_module(traced, node, values, names, used)
        return [(_lower_call(node, values, names, used), {})]
    except (Refusal, TypeError, KeyError) as error:
        reason = str(error) if isinstance(error, Refusal) else f"its arguments are not understood ({error})"
        where = f"`{node.target}`" if node.op == "call_module" else f"`{node.name}`"
        raise StretchError(
            f"cannot capture node {where}: {reason}",
            "`stretch models` lists networks that are supported; give the supported part as `module:factory`",
        ) from error


def _lower_call_module(
    traced: fx.GraphModule, node: fx.Node, values: _Values, names: dict[fx.Node, str], used: set[str]
) -> list[tuple[Op, dict[str, torch.Tensor]]]:
    """A module's operators, each reading the one before it; only the first may read several tensors."""
    if not node.args:
        raise Refusal("its input is passed by keyword")
    sources = _tensor_inputs(node, names)
    base = _unique(str(node.target).replace(".", "_"), node.name, used)
    lowered: list[tuple[Op, dict[str, torch.Tensor]]] = []
    for suffix, kind, attrs, own in lower_module(traced.get_submodule(str(node.target)), values.shapes[_node(node.args[0])]):
        name = _unique(f"{base}_{suffix}", f"{base}_{suffix}", used) if lowered else base
        lowered.append((Op(name, kind, sources, attrs), own))
        sources = (name,)
    return lowered


def _lower_call(node: fx.Node, values: _Values, names: dict[fx.Node, str], used: set[str]) -> Op:
    """The operator of a function or method call."""
    if node.op not in ("call_function", "call_method"):
        raise Refusal("it reads a parameter or buffer directly" if node.op == "get_attr" else f"fx node kind `{node.op}`")
    if node.target is operator.getitem and isinstance(node.args[0], fx.Node) and node.args[0] in values.constants:
        raise Refusal(f"it takes one of several outputs of `{node.args[0].name}`")
    table: dict[Any, Any] = FUNCTIONS if node.op == "call_function" else METHODS
    rule = table.get(node.target)
    if rule is None:
        raise Refusal(f"the {'function' if node.op == 'call_function' else 'method'} `{_target_name(node.target)}` is not supported")
    args = fx.node.map_arg(node.args, lambda n: values.constants.get(n, n))
    kwargs = fx.node.map_arg(node.kwargs, lambda n: values.constants.get(n, n))
    sources, kind, attrs = rule(values.shapes, values.shapes[node], *args, **kwargs)
    inputs = tuple(names[_node(s)] for s in sources)
    return Op(_unique(node.name, node.name, used), kind, inputs, attrs)


def _node(value: Any) -> fx.Node:
    if not isinstance(value, fx.Node):
        raise Refusal(f"it reads {value!r} where a tensor is expected")
    return value


def _tensor_inputs(node: fx.Node, names: dict[fx.Node, str]) -> tuple[str, ...]:
    flat = node.args[0] if len(node.args) == 1 and isinstance(node.args[0], list | tuple) else node.args
    return tuple(names[_node(n)] for n in flat)


def _unique(wanted: str, otherwise: str, used: set[str]) -> str:
    name = wanted if wanted not in used else otherwise
    if hasattr(nn.Module, name):
        name = otherwise = f"{name}_"  # operators become submodules, which may not hide a method
    number = 1
    while name in used:
        name, number = f"{otherwise}_{number}", number + 1
    used.add(name)
    return name


def _target_name(target: Any) -> str:
    return target if isinstance(target, str) else getattr(target, "__name__", str(target))


def _reachable(ops: list[Op], output: str) -> list[Op]:
    """`ops` without those that do not lead to the output."""
    needed = {output}
    for op in reversed(ops):
        if op.name in needed:
            needed.update(op.inputs)
    return [op for op in ops if op.name in needed or op.kind == "input"]


def _check_shapes(graph: OpGraph, values: _Values, names: dict[fx.Node, str]) -> None:
    """What we infer must be what torch computed: a captured graph is never silently wrong."""
    for node, name in names.items():
        if name in graph.by_name and graph.by_name[name].shape != values.shapes[node]:
            raise StretchError(
                f"cannot capture node `{node.name}`: its shape is {values.shapes[node]}, inferred was {graph.by_name[name].shape}"
            )
