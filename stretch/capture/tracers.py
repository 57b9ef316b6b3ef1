"""Tracing with `torch.fx`: with symbols alone, or with the shapes that one input gives."""

import contextlib
import functools
import linecache
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from stretch.capture.inputs import ONLY, Inputs
from stretch.capture.values import InPlaceProxy
from stretch.operators.capturing import lowers

#: How the names begin under which fx puts a graph's constants into the root.
_CONSTANTS = "_tensor_constant"

#: Folders whose code is not that of the network.
_OTHERS = (str(Path(torch.__file__).parent), str(Path(__file__).parent))


class Tracer(fx.Tracer):
    """Traces through everything except modules that lower to operators as they are."""

    def trace(self, root: Any, concrete_args: dict[str, Any] | None = None) -> fx.Graph:
        """The graph of a module, which is afterwards what it was before."""
        with _unchanged(root):
            return super().trace(root, concrete_args)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Whether a module is one node."""
        return lowers(m) or super().is_leaf_module(m, module_qualified_name)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        """What stands for a node's result while the network runs."""
        return InPlaceProxy(node, self)


@contextlib.contextmanager
def _unchanged(root: nn.Module) -> Iterator[None]:
    """What modules keep for later calls, such as tables of positions, is put back: what a trace computes has no data."""
    before = [(module, {key: (value, _copied(value)) for key, value in vars(module).items()}) for module in root.modules()]
    try:
        yield
    finally:
        for module, kept in before:
            for key in [key for key in vars(module) if key not in kept and not key.startswith(_CONSTANTS)]:
                del vars(module)[key]
            for key, (value, was) in kept.items():
                vars(module)[key] = value
                if type(value) is dict:
                    value.clear()
                    value.update(was)
                elif type(value) is list:
                    value[:] = was


def _copied(value: Any) -> Any:
    """A copy of a plain container, or the value itself."""
    return value.copy() if type(value) in (dict, list) else value


class ShapedProxy(InPlaceProxy):
    """A proxy whose shape is known as numbers, so that a network may look at it and decide by it."""

    @property
    def _value(self) -> Any:
        return self.tracer.values.get(self.node)

    @property
    def shape(self) -> Any:
        """The shape as the network itself would see it."""
        value = self._value
        return torch.Size(value.shape) if isinstance(value, torch.Tensor) else fx.proxy.Attribute(self, "shape")

    def size(self, dim: int | None = None) -> Any:
        """The shape, or one number of it."""
        shape = self.shape
        return shape if dim is None else shape[dim]

    @property
    def ndim(self) -> Any:
        """Number of dimensions."""
        return len(self.shape)

    def dim(self) -> Any:
        """Number of dimensions."""
        return len(self.shape)

    def numel(self) -> Any:
        """Number of elements."""
        return self.shape.numel()

    def __len__(self) -> int:
        """Length of the first dimension, or number of tensors."""
        value = self._value
        return len(value) if isinstance(value, torch.Tensor | tuple | list) else super().__len__()

    def __iter__(self) -> Iterator[Any]:
        """The parts of a tuple, or of a tensor along its first dimension."""
        return iter([self[i] for i in range(len(self))])


class ShapedTracer(Tracer):
    """Traces with the shapes that inputs of some shapes give.

    Every node is computed on tensors without data as soon as it is recorded.
    """

    def __init__(self, inputs: Inputs) -> None:
        super().__init__(autowrap_functions=(), param_shapes_constant=True)
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._given = inputs
        self._computing = False
        #: Results without data, by node; a node that cannot be computed so has none.
        self.values: dict[fx.Node, Any] = {}

    def proxy(self, node: fx.Node) -> fx.Proxy:
        """What stands for a node's result while the network runs."""
        return ShapedProxy(node, self)

    def create_proxy(self, kind: str, target: Any, args: Any, kwargs: Any, *rest: Any, **more: Any) -> fx.Proxy:
        """Record a node, and compute its result without data."""
        proxy = super().create_proxy(kind, target, args, kwargs, *rest, **more)
        # Whatever cannot be computed so is as unknown as without shapes.
        with contextlib.suppress(Exception):
            self.values[proxy.node] = self._compute(proxy.node)
        return proxy

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A node for a leaf; anything else runs, and so does everything within a node that is computed."""
        return forward(*args, **kwargs) if self._computing else super().call_module(m, forward, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        """A parameter as a node, except where a node is computed."""
        return attr_val if self._computing else super().getattr(attr, attr_val, parameter_proxy_cache)

    def _compute(self, node: fx.Node) -> Any:
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: self.values[n])
        self._computing = True
        try:
            with self._mode, torch.no_grad():
                match node.op:
                    case "placeholder":
                        return torch.empty(self._given.shapes[str(node.target) if self._given.named else ONLY])
                    case "get_attr":
                        return functools.reduce(getattr, str(node.target).split("."), self.root)
                    case "call_module":
                        return self.root.get_submodule(str(node.target)).forward(*args, **kwargs)
                    case "call_method":
                        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
                    case _:
                        return node.target(*args, **kwargs)  # type: ignore[operator]
        finally:
            self._computing = False


def source_line(error: BaseException) -> str:
    """The network's own line that an exception came from, as `` (file, line 3: `assert …`)``; empty if there is none."""
    current = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_OTHERS)]
    for frame in reversed(current):
        text = linecache.getline(frame.filename, frame.lineno or 0).strip()
        if text:
            return f" ({Path(frame.filename).name}, line {frame.lineno}: `{text}`)"
    return ""
