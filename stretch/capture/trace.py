"""Trace a torch module with `torch.fx` and lower it to an `OpGraph`."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import fx, nn

from predictors.errors import StretchError, UsageError
from predictors.graph import OpGraph
from stretch.capture.hooks import check_hooks
from stretch.capture.lower import Lowering
from stretch.capture.tracers import ShapedTracer, Tracer, source_line
from stretch.capture.values import Values

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


def capture(module: nn.Module, input_shape: Sequence[int] = (1, 3, 224, 224), name: str | None = None) -> Captured:
    """Lower `module` to an operator graph by tracing it in evaluation mode.

    Args:
        module: A network with one tensor in and one tensor out; it and every
            module within it are left in the mode they were in.
        input_shape: Batch, channels, height, width.
        name: Name of the network; its class by default.

    Raises:
        UsageError: If the network rejects an input of this shape.
        StretchError: If the network cannot be traced, has an operator that is not
            supported (names its line, or the node and the reason), or a hook that
            changes its output.
    """
    name = name or type(module).__name__
    with evaluating(module):
        check_hooks(module, input_shape, name)
        traced = _trace(module, tuple(input_shape), name)
        values, same = _run(module, traced, tuple(input_shape), name)
        lowering = Lowering(traced, values, name)
        graph = lowering.graph()
        if not same:
            raise StretchError(
                f"`{name}` computes something else when it is traced by torch.fx",
                "its forward must not draw random numbers in evaluation, nor change a tensor that it reads again under another name",
            )
        return Captured(graph, {op.name: lowering.weights[op.name] for op in graph.ops if op.name in lowering.weights}, module)


@contextlib.contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode for a while; modules within may have been in different modes."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def _trace(module: nn.Module, shape: tuple[int, ...], name: str) -> fx.GraphModule:
    """Trace with symbols; where the network decides by shapes, with those that this input gives."""
    tracer: Tracer = Tracer(autowrap_functions=(), param_shapes_constant=True)
    try:
        graph = tracer.trace(module)
        return fx.GraphModule(tracer.root, graph)
    except Exception as first:
        shaped = ShapedTracer(shape)
        try:
            graph = shaped.trace(module)
            return fx.GraphModule(shaped.root, graph)
        except Exception as error:
            _check_input(module, shape, name)
            raise StretchError(
                f"`{name}` cannot be traced by torch.fx: {_last_line(first)}{source_line(error) or source_line(first)}",
                "its forward must not branch on tensor values; give a factory of the traceable part as `module:factory`",
            ) from error


def _check_input(module: nn.Module, shape: tuple[int, ...], name: str) -> None:
    """Tell an input that the network itself rejects from a network that cannot be traced."""
    try:
        with torch.no_grad():
            module(_random_input(shape))
    except Exception as error:
        raise _rejected(error, shape, name) from error


def _random_input(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def _rejected(error: Exception, shape: tuple[int, ...], name: str) -> UsageError:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    size = "×".join(map(str, shape))
    return UsageError(
        f"`{name}` rejects an input of {size}: {reason}{source_line(error)}", "choose another size with --input, such as 3x224x224"
    )


def _last_line(error: Exception) -> str:
    """Fx raises whatever the module's own code raises; the last line of it says why."""
    return str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__


def _run(module: nn.Module, traced: fx.GraphModule, shape: tuple[int, ...], name: str) -> tuple[Values, bool]:
    """Run the traced network and the network itself; whether they agree."""
    inputs = [node for node in traced.graph.nodes if node.op == "placeholder"]
    needed = [node for node in inputs if not node.args]
    if len(needed) != 1:
        names = ", ".join(node.name for node in needed) or "none"
        raise StretchError(f"`{name}` needs exactly one input tensor, its forward takes {names}", "wrap it in a module with one input")
    values = Values(traced)
    x = _random_input(shape)
    try:
        with torch.no_grad():
            # In-place operations write into what they are given.
            got, want = values.run(x.clone()), module(x.clone())
    except Exception as error:
        raise _rejected(error, shape, name) from error
    return values, not isinstance(got, torch.Tensor) or not isinstance(want, torch.Tensor) or _equal(got, want)


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two results differ by no more than rounding; not-a-number equals itself."""
    if a.shape != b.shape:
        return False
    finite = b[b.isfinite()]
    slack = 1e-4 * float(finite.abs().max()) if finite.numel() else 0.0
    return torch.allclose(a, b, rtol=0.0, atol=slack, equal_nan=True)
