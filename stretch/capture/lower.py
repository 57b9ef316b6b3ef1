"""A traced network to operators, node by node."""

from typing import Any

import torch
from torch import fx, nn

from predictors.errors import StretchError
from predictors.graph import Op, OpGraph
from predictors.shapes import Attr
from stretch.capture.inputs import ONLY
from stretch.capture.lowest import folded
from stretch.capture.results import check_read, outputs_of, reachable, relabelled
from stretch.capture.structure import Returned
from stretch.capture.values import Values, assembles
from stretch.capture.views import ANY_ORDER, View, see
from stretch.operators.capturing import FUNCTIONS, LAST_FUNCTIONS, METHODS, Call, Own, defined_on_last, lower_module
from stretch.operators.settings import Refusal

#: (kind, attributes, weights, suffix of the name)
#: An operator on its way into the graph: kind, attributes, own weights, suffix of its name.
Lowered = tuple[str, dict[str, Attr], Own, str]


class Lowering:
    """Lowers one traced network.

    Args:
        traced: The network as `torch.fx` sees it.
        values: What one run of it showed.
        name: Its name.
        named: Whether inputs are called like the forward's arguments.

    Attributes:
        weights: Per operator, its weights by name, once `graph` was called.
        returned: What the network returns, likewise.
    """

    returned: Returned

    def __init__(self, traced: fx.GraphModule, values: Values, name: str, *, named: bool = False) -> None:
        self._traced, self._values, self._name, self._named = traced, values, name, named
        self._views: dict[fx.Node, View] = {}
        self._used: set[str] = set()
        self._ops: list[Op] = []
        self.weights: dict[str, Own] = {}

    def graph(self) -> OpGraph:
        """The operator graph.

        Raises:
            StretchError: If a node is not supported; names it and the reason.
        """
        for node in self._traced.graph.nodes:
            if node.op == "placeholder":
                if node in self._values.shapes:
                    name = str(node.target) if self._named else ONLY
                    self._used.add(name)
                    shape = self._values.shapes[node]
                    self._ops.append(Op(name, "input", attrs={"shape": shape}))
                    self._views[node] = View(name, shape)
            elif node.op != "output":
                self._lower_node(node)
        outputs = self._outputs()
        try:
            ops = folded(self._ops)
        except Refusal as error:
            raise StretchError(f"`{self._name}` cannot be captured: {error}") from error
        graph = OpGraph.build(self._name, reachable(ops, outputs), outputs)
        self._check_shapes(graph)
        check_read(graph)
        return graph

    def _outputs(self) -> list[str]:
        """Names of the operators that the network returns; notes what it returns."""
        try:
            self.returned = relabelled(self._values.returned, self._values.given_back, self._result)
        except Refusal as error:
            raise StretchError(f"`{self._name}` cannot be captured: its output is not as an operator computes it ({error})") from error
        return outputs_of(self.returned, [op.name for op in self._ops if op.kind == "input"], self._name)

    def _result(self, tensor: torch.Tensor) -> str | None:
        """The operator that computes a tensor of the output; None where it does not depend on the input."""
        writer = self._values.writer(tensor)
        if writer in self._values.parameters:
            return None
        return self._views[writer].plain()

    def _lower_node(self, node: fx.Node) -> None:
        if node in self._values.parameters or node in self._values.constants or assembles(node):
            return
        try:
            self._views[node] = self._lower_module(node) if node.op == "call_module" else self._lower_call(node)
        except (Refusal, TypeError, KeyError) as error:
            reason = str(error) if isinstance(error, Refusal) else f"its arguments are not understood ({error})"
            where = f"`{node.target}`" if node.op == "call_module" else f"`{node.name}`"
            raise StretchError(
                f"cannot capture node {where}: {reason}",
                "`stretch models` lists networks that are supported; give the supported part as `module:factory`",
            ) from error

    def _lower_module(self, node: fx.Node) -> View:
        """A module's operators, each reading the one before it; only the first may read several tensors."""
        given = [*node.args, *node.kwargs.values()]
        flat = list(given[0]) if len(given) == 1 and isinstance(given[0], list | tuple) else given
        sources = [self._view(node, n) for n in flat]
        if not sources:
            raise Refusal("it reads no tensor")
        last = sources[0].form == "last"
        module = self._traced.get_submodule(str(node.target))
        steps: list[Lowered] = [(kind, attrs, own, suffix) for suffix, kind, attrs, own in lower_module(module, sources[0].shape, last)]
        if last and defined_on_last(module):
            # Lowering saw to it.
            return self._emit(node, steps, sources, str(node.target).replace(".", "_"), "last")
        return self._emit(node, steps, sources, str(node.target).replace(".", "_"), self._form(steps, sources, node))

    def _lower_call(self, node: fx.Node) -> View:
        """The operators of a function or method call."""
        if node.op not in ("call_function", "call_method"):
            raise Refusal(f"fx node kind `{node.op}`")
        target = _target_name(node.target)
        args, kwargs = list(self._known(node.args)), dict(self._known(node.kwargs))
        for first in ("input", "self"):
            if not args and first in kwargs:
                args.append(kwargs.pop(first))
        if args and isinstance(args[0], fx.Node) and args[0] in self._views:
            view = self._views[self._source(node, args[0])]
            out = self._values.shapes[node] if node in self._values.shapes else self._values.parts[node]
            seen = see(target, view, self._before(args[0]), out, args[1:], kwargs)
            if isinstance(seen, View):
                return seen
            if seen is not None:
                return self._emit(node, [(*seen, {}, "")], [view], node.name, "plain")
        if node in self._values.parts:
            raise Refusal(f"it gives several tensors, and `{target}` is not supported")
        table: dict[Any, Any] = FUNCTIONS if node.op == "call_function" else METHODS
        rule = table.get(node.target)
        if rule is None:
            raise Refusal(f"the {'function' if node.op == 'call_function' else 'method'} `{target}` is not supported")
        views = {n: self._view(node, n) for n in node.all_input_nodes if n in self._views}
        last = any(view.form == "last" for view in views.values())
        shapes = {n: (self._values.shapes[n] if view.form == "expanded" else view.shape) for n, view in views.items()}
        shape = self._values.shapes[node]
        if last and len(shape) == 4:
            shape = _channels_first(shape)
            if target not in LAST_FUNCTIONS:
                args = [_permuted(a) for a in args]
        result = rule(Call(shapes, shape), *args, **kwargs)
        chain = result if isinstance(result, list) else [result]
        sources = [self._view(node, n) for n in chain[0][0]]
        steps: list[Lowered] = [
            (kind, attrs, rest[0] if rest else {}, "" if i == 0 else str(i)) for i, (_, kind, attrs, *rest) in enumerate(chain)
        ]
        if target in LAST_FUNCTIONS and len(shape) == 4:
            if not last:
                raise Refusal(f"`{target}` over the last dimension of a feature map is not supported, only over channels")
            return self._emit(node, steps, sources, node.name, "last")
        return self._emit(node, steps, sources, node.name, self._form(steps, sources, node))

    def _form(self, steps: list[Lowered], sources: list[View], node: fx.Node) -> str:
        """How the result of `steps` lies, which read `sources`."""
        forms = {view.form for view in sources}
        if forms == {"plain"}:
            return "plain"
        kinds = {kind for kind, *_ in steps}
        if forms == {"last"} and kinds <= ANY_ORDER:
            return "last"
        if forms == {"plain", "expanded"} and kinds <= {"add", "mul"}:
            return "plain"
        next(view for view in sources if view.form != "plain").plain()
        raise Refusal("it reads tensors whose dimensions lie in different orders")

    def _emit(self, node: fx.Node, steps: list[Lowered], sources: list[View], base: str, form: str) -> View:
        reads = tuple(view.op for view in sources)
        name = ""
        for kind, attrs, own, suffix in steps:
            if not name:
                name = base = _unique(base, node.name, self._used)
            else:
                name = _unique(f"{base}_{suffix}", f"{base}_{suffix}", self._used)
            self._ops.append(Op(name, kind, reads, attrs))
            if own:
                self.weights[name] = own
            reads = (name,)
        shape = self._values.shapes[node]
        return View(name, _channels_first(shape) if form == "last" else shape, form)

    def _known(self, args: Any) -> Any:
        """Arguments with what is known in their place: numbers and parameters."""
        values = self._values

        def known(node: fx.Node) -> Any:
            if node in values.parameters:
                return values.parameters[node]
            return node if node in self._views else values.constants.get(node, node)

        return fx.node.map_aggregate(args, lambda a: known(a) if isinstance(a, fx.Node) else a)

    def _source(self, reader: fx.Node, node: fx.Node) -> fx.Node:
        return self._values.source(reader, node)

    def _before(self, node: fx.Node) -> tuple[int, ...]:
        return self._values.shapes.get(node, ())

    def _view(self, reader: fx.Node, value: Any) -> View:
        if not isinstance(value, fx.Node):
            raise Refusal(f"it reads {value!r} where a tensor is expected")
        source = self._source(reader, value)
        if source not in self._views:
            if source in self._values.parameters:
                raise Refusal(f"it reads the parameters `{source.name}` where a tensor that depends on the input is expected")
            raise Refusal(f"it reads `{source.name}`, which is no tensor")
        return self._views[source]

    def _check_shapes(self, graph: OpGraph) -> None:
        """What we infer must be what torch computed: a captured graph is never silently wrong."""
        for node, view in self._views.items():
            if view.op in graph.by_name and graph.by_name[view.op].shape != view.shape:
                raise StretchError(
                    f"cannot capture node `{node.name}`: its shape is {view.shape}, inferred was {graph.by_name[view.op].shape}"
                )


def _channels_first(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (shape[0], shape[3], shape[1], shape[2])


def _permuted(value: Any) -> Any:
    """A parameter that meets channels lying last, as it would meet them lying second."""
    if isinstance(value, torch.Tensor) and value.numel() > 1:
        return value.reshape(*[1] * (4 - value.dim()), *value.shape).permute(0, 3, 1, 2)
    return value


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
