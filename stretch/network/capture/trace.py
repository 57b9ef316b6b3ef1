"""Trace a torch module with `torch.fx` and lower it to an `OpGraph`."""

import contextlib
import dataclasses
import inspect
import linecache
import operator
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

from predictors.errors import StretchError, UsageError, first_line, need
from predictors.graph import Op, OpGraph, unique_name
from predictors.shapes import Shape, ints
from stretch.network.capture.inputs import SINGLE_INPUT, Inputs, InputShapes, check_hooks, whole_numbers_error
from stretch.network.capture.results import (
    Captured,
    OutputStructure,
    check_inputs_used,
    leaves,
    name_outputs,
    outputs_of,
    reachable,
    tensors,
    unused_inputs,
)
from stretch.operators.capturing import (
    FUNCTIONS,
    METHODS,
    ON_LAST,
    Step,
    TracedCall,
    UnsupportedNode,
    as_chain,
    class_name,
    lower_module,
    require_supported,
)
from stretch.operators.lowerings import lowerings
from stretch.operators.move import LOWEST

#: Folders whose code does not belong to the network.
_LIBRARY_FOLDERS = (str(Path(torch.__file__).parent), str(Path(__file__).parent))


class TraceFailure(StretchError):
    """A network that torch.fx refuses."""


class InPlaceProxy(fx.Proxy):
    """A proxy that records ``x += y`` as an in-place operation.

    fx itself records ``x = x + y``, so that another name of `x` would keep the
    old value, although it changes when the network runs.
    """


for _function in (operator.iadd, operator.isub, operator.imul, operator.itruediv):
    setattr(
        InPlaceProxy,
        f"__{_function.__name__}__",
        lambda self, other, function=_function: self.tracer.create_proxy("call_function", function, (self, other), {}),
    )


class Tracer(fx.Tracer):
    """Traces through everything except modules that lower to operators as a whole."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Return whether the trace keeps a module as one node."""
        return class_name(m) is not None or super().is_leaf_module(m, module_qualified_name)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        """Return the proxy of a node."""
        return InPlaceProxy(node, self)


def source_line(error: BaseException) -> str:
    """Return the network's own line that raised an exception, as `` (file, line 3: `assert …`)``; empty if there is none."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_LIBRARY_FOLDERS)]
    for frame in reversed(frames):
        text = linecache.getline(frame.filename, frame.lineno or 0).strip()
        if text:
            return f" ({Path(frame.filename).name}, line {frame.lineno}: `{text}`)"
    return ""


# One run of a traced network: shapes, constants, and the operator that last changed each tensor.


def is_assembly(node: fx.Node) -> bool:
    """Return whether a node only puts tensors into a container: a named tuple or a dataclass."""
    target = node.target
    return isinstance(target, type) and (hasattr(target, "_fields") or dataclasses.is_dataclass(target))


class Values(fx.Interpreter):
    """Runs the traced graph once and keeps the facts that lowering needs.

    Attributes:
        shapes: Shape of each node's tensor.
        constants: Values of nodes that are not tensors.
        parts: Values of nodes that are several tensors.
        parameters: Tensors that do not depend on the input: parameters,
            buffers, and tensors computed from these alone.
        given_back: Result of the traced graph.
        returned: Results of the network itself for the same inputs.
    """

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.shapes: dict[fx.Node, tuple[int, ...]] = {}
        self.constants: dict[fx.Node, Any] = {}
        self.parts: dict[fx.Node, tuple[torch.Tensor, ...]] = {}
        self.parameters: dict[fx.Node, torch.Tensor] = {}
        self.given_back: Any = None
        self.returned: Any = None
        self._versions: dict[fx.Node, int] = {}
        self._latest: dict[int, tuple[fx.Node, int]] = {}
        self._moved: dict[tuple[fx.Node, fx.Node], fx.Node | None] = {}

    def run_node(self, n: fx.Node) -> Any:
        """Run one node and record its inputs and outputs."""
        for source in n.all_input_nodes:
            value = self.env[source]
            if isinstance(value, torch.Tensor) and value._version != self._versions[source]:
                # Another node has changed the tensor since; if it did so through this very tensor, that node's result is read.
                writer, version = self._latest[id(value)]
                self._moved[n, source] = writer if version == value._version else None
        fixed = n.op in ("get_attr", "call_function", "call_method") and all(
            source in self.parameters or source in self.constants for source in n.all_input_nodes
        )
        value = super().run_node(n)
        if n.op == "output":
            self.given_back = value
        elif isinstance(value, torch.Tensor):
            self.shapes[n] = tuple(value.shape)
            self._versions[n] = value._version
            self._latest[id(value)] = (n, value._version)
            if fixed:
                self.parameters[n] = value
        elif isinstance(value, tuple | list) and any(isinstance(part, torch.Tensor) for part in value):
            self.parts[n] = tuple(value)
        else:
            self.constants[n] = value
        if not isinstance(value, torch.Tensor) and n.op != "output" and not is_assembly(n):
            # a tensor without a node of its own must not be taken for an earlier one at the same address
            self._latest |= {id(part): (n, part._version) for part in tensors(value)}
        return value

    def writer(self, tensor: torch.Tensor) -> fx.Node:
        """Return the node that computes this tensor of the output."""
        writer, version = self._latest[id(tensor)]
        require_supported(version == tensor._version, f"it returns `{writer.name}`, which was changed in place through a view of it")
        require_supported(writer in self.shapes, f"it returns one of several results of `{writer.name}`")
        return writer

    def source(self, reader: fx.Node, read: fx.Node) -> fx.Node:
        """Return the node that computes the tensor which `reader` sees as `read`.

        The two nodes differ if the tensor was changed in place in between.
        """
        value = self._moved.get((reader, read), read)
        if value is None:
            raise UnsupportedNode(f"it reads `{read.name}`, which was changed in place through a view of it")
        return value


# Tensors seen in another order of dimensions, and the effect of their use.
#
# A permutation or a reshape of channels is no operator by itself. It is kept as a
# *view* of an operator's tensor until its use gives it a meaning: a channel
# shuffle, a slice, or operators on channels in the last dimension. Any other
# reader of a view is refused.

#: Kinds that compute the same on channels in the last dimension.
ANY_ORDER = frozenset(name for name in lowerings if lowerings.get(name).any_order)


@dataclass(frozen=True)
class View:
    """How a traced tensor shows an operator's tensor."""

    op: str  # Name of the operator.
    shape: Shape  # Shape of the operator's tensor.
    #: Form: ``plain``; ``last`` (N×H×W×C); ``grouped`` (N×G×C/G×H×W); ``swapped`` (N×C/G×G×H×W); ``parts`` (a tuple of channel ranges);
    #: ``picked`` (one channel, its dimension removed); ``tall`` (N×C×1 of N×C); ``expanded`` (N×C×1×1 repeated over height and width).
    form: str = "plain"
    detail: tuple[Any, ...] = ()  # Number of groups, channel ranges, or the channel, depending on the form.

    def require_unchanged(self) -> str:
        """Return the operator's name; refuse any form but ``plain``."""
        if self.form != "plain":
            raise UnsupportedNode(f"it reads a tensor that was {_FORM_NAMES[self.form]}, which is not supported here")
        return self.op


_FORM_NAMES = {
    "last": "permuted to N×H×W×C",
    "grouped": "reshaped to five dimensions",
    "swapped": "reshaped to five dimensions",
    "parts": "split into several",
    "picked": "reduced to one channel without its dimension",
    "tall": "reshaped to N×C×1",
    "expanded": "expanded",
}

#: A view, or an operator that reads the view's tensor.
Effect = View | Step


def _with_form(view: View, form: str, *detail: Any) -> View:
    return View(view.op, view.shape, form, detail)


def _permute(view: View, before: Shape, out: Any, *dims: Any) -> Effect:
    order = dims[0] if len(dims) == 1 and isinstance(dims[0], list | tuple) else dims
    order = tuple(d % len(before) for d in order)
    if order == tuple(range(len(before))):
        return view
    if view.form == "plain" and order == (0, 2, 3, 1):
        return _with_form(view, "last")
    if view.form == "last" and order == (0, 3, 1, 2):
        return _with_form(view, "plain")
    if view.form == "grouped" and order == (0, 2, 1, 3, 4):
        return _with_form(view, "swapped", *view.detail)
    raise UnsupportedNode(f"permuting dimensions to {order} is not supported")


def _transpose(view: View, before: Shape, out: Any, a: int, b: int) -> Effect:
    order = list(range(len(before)))
    order[a], order[b] = order[b], order[a]
    return _permute(view, before, out, order)


def _reshape(view: View, before: Shape, out: Shape, *size: Any) -> Effect | None:
    if before == out:
        return view
    shape = view.shape
    if view.form == "plain" and len(shape) == 4 and len(out) == 5 and out == (shape[0], out[1], shape[1] // out[1], *shape[2:]):
        return _with_form(view, "grouped", out[1])
    if view.form == "grouped" and out == shape:
        return _with_form(view, "plain")
    if view.form == "swapped" and out == shape:
        return Step("channel_shuffle", {"groups": view.detail[0]})
    if view.form == "plain" and len(before) == 2 and out == (*before, 1, 1):
        return Step("unflatten")
    return None


def _split(view: View, before: Shape, out: Any, sizes: Any, dim: int = 0) -> Effect:
    view.require_unchanged()
    require_supported(dim % len(before) == 1, f"splitting along dimension {dim} is not supported, only along channels")
    ranges, start = [], 0
    for part in out:
        ranges.append((start, start + part.shape[1]))
        start += part.shape[1]
    return _with_form(view, "parts", *ranges)


def _cut(view: View, start: int, stop: int) -> Effect:
    if (start, stop) == (0, view.shape[1]):
        return view if view.form == "plain" else _with_form(view, "plain")
    return Step("slice", {"start": start, "stop": stop})


def _getitem(view: View, before: Shape, out: Any, index: Any) -> Effect:
    if view.form == "parts" and isinstance(index, slice):
        return _with_form(view, "parts", *view.detail[index])
    if view.form == "parts":
        return _cut(view, *view.detail[index])
    view.require_unchanged()
    items = index if isinstance(index, tuple) else (index,)
    full = slice(None)
    if len(before) == 2 and len(items) == 4 and items == (full, full, None, None):
        return Step("unflatten")
    if Ellipsis in items:
        position = items.index(Ellipsis)
        items = (*items[:position], *[full] * (len(before) - len(items) + 1), *items[position + 1 :])
    if len(items) > len(before) or any(item != full for i, item in enumerate(items) if i != 1):
        raise UnsupportedNode(f"indexing with {index} is not supported, only ranges of channels")
    channels = items[1] if len(items) > 1 else full
    if isinstance(channels, int):
        return _with_form(view, "picked", channels % before[1])
    if not isinstance(channels, slice) or channels.step not in (None, 1):
        raise UnsupportedNode(f"indexing with {index} is not supported, only ranges of channels")
    start, stop, _ = channels.indices(before[1])
    return _cut(view, start, stop)


def _unsqueeze(view: View, before: Shape, out: Shape, dim: int) -> Effect:
    position = dim % (len(before) + 1)
    if view.form == "picked" and position == 1:
        return _cut(view, view.detail[0], view.detail[0] + 1)
    if view.form == "plain" and len(before) == 2 and position == 2:
        return _with_form(view, "tall")
    if view.form == "tall" and position >= 2:
        return Step("unflatten")
    raise UnsupportedNode(f"a new dimension {dim} of a tensor of shape {before} is not supported")


def _expand(view: View, before: Shape, out: Shape, *_: Any) -> Effect:
    view.require_unchanged()
    if before == out:
        return view
    if len(before) == 4 and out[:2] == before[:2] and before[2:] == (1, 1):
        return _with_form(view, "expanded")
    raise UnsupportedNode(f"expanding {before} to {out} is not supported")


#: Effects of functions and methods on a view that they reorder or cut, by name; None if the call is an operator.
_RULES: dict[str, Callable[..., Effect | None]] = {
    **{"permute": _permute, "getitem": _getitem, "unsqueeze": _unsqueeze},
    **dict.fromkeys(("transpose", "swapaxes"), _transpose),
    **dict.fromkeys(("view", "reshape"), _reshape),
    **dict.fromkeys(("contiguous", "clone"), lambda view, *_, **__: view),
    **dict.fromkeys(("chunk", "split"), _split),
    **dict.fromkeys(("expand", "expand_as"), _expand),
}


def fold_infinite_padding(ops: Sequence[Op]) -> list[Op]:
    """Return the operators with padding by −∞ merged into the max pooling that reads it, because the maximum ignores it.

    Args:
        ops: Operators in topological order, without shapes.
    """
    pads = {op.name: op for op in ops if LOWEST in op.attrs}
    result = []
    for op in ops:
        if op.name in pads:
            continue
        pad = next((pads[name] for name in op.inputs if name in pads), None)
        if pad is not None:
            if op.kind != "max_pool" or op.attrs["ceil_mode"]:
                raise UnsupportedNode(
                    f"padding by minus infinity is read by `{op.name}` ({op.kind}), and only max pooling that rounds down takes it"
                )
            padding = tuple(a + b for a, b in zip(ints(pad.attrs, "padding"), ints(op.attrs, "padding"), strict=True))
            if any(side > size // 2 for side, size in zip(padding, 2 * ints(op.attrs, "kernel"), strict=True)):
                raise UnsupportedNode(f"`{op.name}` reads an image padded by minus infinity further than half of its window")
            op = replace(op, inputs=pad.inputs, attrs={**op.attrs, "padding": padding})
        result.append(op)
    return result


class TraceLowering:
    """Lowers one traced network.

    Args:
        traced: The network as traced by `torch.fx`.
        values: Values of one run of the network.
        name: Name of the network.
        named: Whether inputs have the names of the forward's arguments.

    Attributes:
        weights: Weights by operator and name, once `graph` was called.
        returned: Results of the network, once `graph` was called.
    """

    returned: OutputStructure

    def __init__(self, traced: fx.GraphModule, values: Values, name: str, *, named: bool = False) -> None:
        self._traced, self._values, self._name, self._named = traced, values, name, named
        self._views: dict[fx.Node, View] = {}
        self._used: set[str] = set()
        self._ops: list[Op] = []
        self.weights: dict[str, dict[str, torch.Tensor]] = {}

    def graph(self) -> OpGraph:
        """Return the network's operator graph."""
        for node in self._traced.graph.nodes:
            if node.op == "placeholder":
                if node in self._values.shapes:
                    name = str(node.target) if self._named else SINGLE_INPUT
                    self._used.add(name)
                    shape = self._values.shapes[node]
                    self._ops.append(Op(name, "input", attrs={"shape": shape}))
                    self._views[node] = View(name, shape)
            elif node.op != "output":
                self._lower_node(node)
        outputs = self._outputs()
        try:
            ops = fold_infinite_padding(self._ops)
        except UnsupportedNode as error:
            raise StretchError(f"`{self._name}` cannot be captured: {error}") from error
        graph = OpGraph.build(self._name, reachable(ops, outputs), outputs)
        self._check_shapes(graph)
        check_inputs_used(graph)
        return graph

    def _outputs(self) -> list[str]:
        """Return the names of the operators that the network returns, and record the structure of its result."""
        try:
            content = [leaf for _, leaf in leaves(self._values.given_back)]
            expected = [leaf for _, leaf in leaves(self._values.returned)]
            same_form = [isinstance(leaf, torch.Tensor) for leaf in content] == [isinstance(leaf, torch.Tensor) for leaf in expected]
            require_supported(same_form, "it has another form where it is captured")
            names = [self._result(leaf) if isinstance(leaf, torch.Tensor) else None for leaf in content]
            self.returned = name_outputs(self._values.returned, names)
        except UnsupportedNode as error:
            raise StretchError(f"`{self._name}` cannot be captured: its output is not as an operator computes it ({error})") from error
        return outputs_of(self.returned, [op.name for op in self._ops if op.kind == "input"], self._name)

    def _result(self, tensor: torch.Tensor) -> str | None:
        """Return the operator that computes a tensor of the output; None if the tensor does not depend on the input."""
        writer = self._values.writer(tensor)
        if writer in self._values.parameters:
            return None
        return self._views[writer].require_unchanged()

    def _lower_node(self, node: fx.Node) -> None:
        if node in self._values.parameters or node in self._values.constants or is_assembly(node):
            return
        try:
            self._views[node] = self._lower_module(node) if node.op == "call_module" else self._lower_call(node)
        except (UnsupportedNode, TypeError, KeyError) as error:
            reason = str(error) if isinstance(error, UnsupportedNode) else f"its arguments are not understood ({error})"
            noun = f"`{node.target}`" if node.op == "call_module" else f"`{node.name}`"
            raise StretchError(
                f"cannot capture node {noun}: {reason}",
                "`stretch list models` lists networks that are supported; give the supported part as `module:factory`",
            ) from error

    def _lower_module(self, node: fx.Node) -> View:
        """Lower a module to operators in a chain; only the first may read several tensors."""
        arguments = [*node.args, *node.kwargs.values()]
        flat = list(arguments[0]) if len(arguments) == 1 and isinstance(arguments[0], list | tuple) else arguments
        sources = [self._view(node, n) for n in flat]
        require_supported(bool(sources), "it reads no tensor")
        last = sources[0].form == "last"
        module = self._traced.get_submodule(str(node.target))
        steps = lower_module(module, sources[0].shape, last)
        # an operator that is defined on the last dimension leaves the tensor's form unchanged
        form = "last" if last and class_name(module) in ON_LAST else self._form(steps, sources)
        return self._emit(node, steps, sources, str(node.target).replace(".", "_"), form)

    def _lower_call(self, node: fx.Node) -> View:
        """Lower a function or method call to operators or to a view."""
        require_supported(node.op in ("call_function", "call_method"), f"fx node kind `{node.op}`")
        target = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
        args, kwargs = list(self._to_constants(node.args)), dict(self._to_constants(node.kwargs))
        for first in ("input", "self"):
            if not args and first in kwargs:
                args.append(kwargs.pop(first))
        if args and isinstance(args[0], fx.Node) and args[0] in self._views:
            view = self._views[self._values.source(node, args[0])]
            out = self._values.shapes[node] if node in self._values.shapes else self._values.parts[node]
            reorder = _RULES.get(target, lambda *_, **__: None)
            effect = reorder(view, self._values.shapes.get(args[0], ()), out, *args[1:], **kwargs)
            if isinstance(effect, View):
                return effect
            if effect is not None:
                return self._emit(node, [effect], [view], node.name, "plain")
        require_supported(node not in self._values.parts, f"it gives several tensors, and `{target}` is not supported")
        table: dict[Any, Any] = FUNCTIONS if node.op == "call_function" else METHODS
        rule = table.get(node.target)
        if rule is None:
            raise UnsupportedNode(f"the {'function' if node.op == 'call_function' else 'method'} `{target}` is not supported")
        views = {n: self._view(node, n) for n in node.all_input_nodes if n in self._views}
        last = any(view.form == "last" for view in views.values())
        shapes = {n: (self._values.shapes[n] if view.form == "expanded" else view.shape) for n, view in views.items()}
        shape = self._values.shapes[node]
        if last and len(shape) == 4:
            shape = _channels_first(shape)
            if target not in ON_LAST:
                args = [_permuted(a) for a in args]
        steps = as_chain(rule(TracedCall(shapes, shape), *args, **kwargs))
        sources, over_last = [self._view(node, n) for n in steps[0].reads], target in ON_LAST and len(shape) == 4
        require_supported(
            last or not over_last, f"`{target}` over the last dimension of a feature map is not supported, only over channels"
        )
        return self._emit(node, steps, sources, node.name, "last" if over_last else self._form(steps, sources))

    def _form(self, steps: list[Step], sources: list[View]) -> str:
        """Return the form of the result of `steps`, which read `sources`."""
        forms = {view.form for view in sources}
        if forms == {"plain"}:
            return "plain"
        kinds = {step.kind for step in steps}
        if forms == {"last"} and kinds <= ANY_ORDER:
            return "last"
        if forms == {"plain", "expanded"} and kinds <= {"add", "mul"}:
            return "plain"
        next(view for view in sources if view.form != "plain").require_unchanged()
        raise UnsupportedNode("it reads tensors whose dimensions lie in different orders")

    def _emit(self, node: fx.Node, steps: list[Step], sources: list[View], base: str, form: str) -> View:
        reads = tuple(view.op for view in sources)
        name = ""
        for i, step in enumerate(steps):
            if i == 0:
                name = base = _unique(base, node.name, self._used)
            else:
                name = _unique(f"{base}_{step.suffix or i}", f"{base}_{step.suffix or i}", self._used)
            self._ops.append(Op(name, step.kind, reads, step.attrs))
            if step.weights:
                self.weights[name] = dict(step.weights)
            reads = (name,)
        shape = self._values.shapes[node]
        return View(name, _channels_first(shape) if form == "last" else shape, form)

    def _to_constants(self, args: Any) -> Any:
        """Replace nodes among the arguments by their known values: numbers and parameters."""
        values = self._values

        def known_value(node: fx.Node) -> Any:
            if node in values.parameters:
                return values.parameters[node]
            return node if node in self._views else values.constants.get(node, node)

        return fx.node.map_aggregate(args, lambda a: known_value(a) if isinstance(a, fx.Node) else a)

    def _view(self, reader: fx.Node, value: Any) -> View:
        if not isinstance(value, fx.Node):
            raise UnsupportedNode(f"it reads {value!r} where a tensor is expected")
        source = self._values.source(reader, value)
        if source not in self._views:
            if source in self._values.parameters:
                raise UnsupportedNode(f"it reads the parameters `{source.name}` where a tensor that depends on the input is expected")
            raise UnsupportedNode(f"it reads `{source.name}`, which is no tensor")
        return self._views[source]

    def _check_shapes(self, graph: OpGraph) -> None:
        """Check that inferred shapes equal torch's, so that a captured graph is never silently wrong."""
        for node, view in self._views.items():
            if view.op in graph.by_name and graph.by_name[view.op].shape != view.shape:
                raise StretchError(
                    f"cannot capture node `{node.name}`: its shape is {view.shape}, inferred was {graph.by_name[view.op].shape}"
                )


def _channels_first(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (shape[0], shape[3], shape[1], shape[2])


def _permuted(value: Any) -> Any:
    """Return a parameter for channels in the second dimension, given its shape for channels in the last."""
    if isinstance(value, torch.Tensor) and value.numel() > 1:
        return value.reshape(*[1] * (4 - value.dim()), *value.shape).permute(0, 3, 1, 2)
    return value


def _unique(preferred: str, alternative: str, used: set[str]) -> str:
    name = preferred if preferred not in used else alternative
    if hasattr(nn.Module, name):
        name = f"{name}_"  # operators become submodules, which may not hide a method
    name = unique_name(name, used.__contains__)
    used.add(name)
    return name


def capture_traced(module: nn.Module, input_shape: InputShapes | Inputs = (1, 3, 224, 224), name: str | None = None) -> Captured:
    """Lower `module` to an operator graph by tracing it in evaluation mode.

    Args:
        module: A network of tensors; it and every module within it keep their training or evaluation mode.
        input_shape: As in `stretch.network.capture.capture`.
    """
    name = name or type(module).__name__
    if isinstance(module, fx.GraphModule) and any(isinstance(node.target, torch._ops.OpOverload) for node in module.graph.nodes):
        raise StretchError(f"`{name}` is a network of ATen operators, as torch.export writes them")
    with evaluation_mode(module):
        arguments = Inputs.of(input_shape, module)
        check_hooks(module, arguments, name)
        traced = _trace(module, arguments, name)
        values, same = _run(module, traced, arguments, name)
        lowering = TraceLowering(traced, values, name, named=arguments.named)
        graph = lowering.graph()
        need(
            bool(same),
            f"`{name}` computes something else when it is traced by torch.fx",
            "its forward must not draw random numbers in evaluation, nor change a tensor that it reads again under another name",
        )
        weights = {op.name: lowering.weights[op.name] for op in graph.ops if op.name in lowering.weights}
        warnings = unused_inputs(lowering.returned, [op.name for op in graph.inputs])
        return Captured(graph, weights, module, returned=lowering.returned, warnings=tuple(warnings))


@contextlib.contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Switch a network to evaluation mode within the context; modules within it may have had different modes."""
    with restore_module(module):
        module.eval()
        yield


@contextlib.contextmanager
def restore_module(module: nn.Module) -> Iterator[None]:
    """Restore a network's attributes after the context, because a tracer fills cached state, such as tables of positions, with proxies."""
    saved = [
        (part, {key: (value, value.copy() if type(value) in (dict, list) else value) for key, value in vars(part).items()})
        for part in module.modules()
    ]
    try:
        yield
    finally:
        for part, current in saved:
            vars(part).clear()
            for key, (value, content) in current.items():
                vars(part)[key] = value
                if type(value) is dict:
                    value.clear()
                    value.update(content)
                elif type(value) is list:
                    value[:] = content


def _trace(module: nn.Module, inputs: Inputs, name: str) -> fx.GraphModule:
    """Trace the network symbolically; a network that branches on shapes is left to `torch.export`."""
    tracer = Tracer(autowrap_functions=(), param_shapes_constant=True)
    try:
        with restore_module(module):
            graph = tracer.trace(module)
            return fx.GraphModule(tracer.root, graph)
    except Exception as error:
        check_input(module, inputs, name)
        # the last line of an exception in the module's own code states the reason
        reason = str(error).strip().rpartition("\n")[2] or type(error).__name__
        raise TraceFailure(
            f"`{name}` cannot be traced by torch.fx: {reason}{source_line(error)}",
            "its forward must not branch on tensor values; give a factory of the traceable part as `module:factory`",
        ) from error


def check_input(module: nn.Module, inputs: Inputs, name: str, device: torch.device | str = "cpu") -> None:
    """Raise a usage error if the network itself rejects the inputs, which is not a failure of capturing."""
    try:
        with torch.no_grad():
            inputs.call(module, inputs.random(device=device))
    except Exception as error:
        raise _input_error(error, module, inputs, name) from error


#: Messages of torch for inputs that must be whole numbers, such as word indices.
_INTEGER_ERRORS = ("expected tensor for argument #1 'indices'", "tensors used as indices must be long")


class RejectedInputError(UsageError):
    """A network rejects inputs of the requested size."""


def _input_error(error: Exception, module: nn.Module, inputs: Inputs, name: str) -> UsageError:
    reason = first_line(error)
    if any(item in reason.lower() for item in _INTEGER_ERRORS):
        return whole_numbers_error(name, source_line(error))
    if isinstance(error, IndexError) or "unpack" in reason:
        reason = f"it has another number of axes than is read ({reason})"
    size, first = (
        "an input of" if len(inputs.shapes) == 1 else "inputs of",
        next(iter(inspect.signature(module.forward).parameters), SINGLE_INPUT),
    )
    return RejectedInputError(
        f"`{name}` rejects {size} {inputs}: {reason}{source_line(error)}",
        f"choose another size with --input: an image as 3x224x224, anything else by its name with all axes, as {first}=1x16x32",
    )


def _run(module: nn.Module, traced: fx.GraphModule, inputs: Inputs, name: str) -> tuple[Values, bool]:
    """Run the traced network and the network itself; return the traced values and whether the results agree."""
    waiting = dict(zip(inputs.shapes, inputs.random(), strict=True))
    arguments: list[Any] = []
    for node in (node for node in traced.graph.nodes if node.op == "placeholder"):
        target = str(node.target)
        current = target if inputs.named else SINGLE_INPUT
        if current in waiting and (inputs.named or not node.args):
            arguments.append(waiting.pop(current).clone())
        elif target.startswith("*"):
            # arguments without a name get nothing
            arguments += []
        elif node.args:
            arguments.append(node.args[0])
        else:
            needed = [node.name for node in traced.graph.nodes if node.op == "placeholder" and not node.args]
            raise StretchError(
                f"`{name}` needs exactly one input tensor, its forward takes {', '.join(needed) or 'none'}",
                "give each of its inputs a shape, as a mapping from their names or with --input NAME=SHAPE",
            )
    need(not waiting, f"`{name}` needs exactly one input tensor, its forward takes none", "give a network that reads its input")
    values = Values(traced)
    try:
        with torch.no_grad():
            # In-place operations write into their inputs.
            computed = values.run(*arguments)
            expected = values.returned = inputs.call(module, inputs.random())
    except Exception as error:
        raise _input_error(error, module, inputs, name) from error
    actual, reference = tensors(computed), tensors(expected)
    return values, len(actual) == len(reference) and all(is_close(a, b) for a, b in zip(actual, reference, strict=True))


def is_close(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether two results differ by no more than rounding; NaN equals NaN."""
    if a.shape != b.shape:
        return False
    a, b = (x if x.is_floating_point() or x.is_complex() else x.float() for x in (a, b))
    finite = b[b.isfinite()]
    slack = 1e-4 * float(finite.abs().double().max()) if finite.numel() else 0.0
    return torch.allclose(a, b, rtol=0.0, atol=slack, equal_nan=True)
