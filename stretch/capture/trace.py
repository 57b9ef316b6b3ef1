"""Trace a torch module with `torch.fx` and lower it to an `OpGraph`."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx, nn

from predictors.errors import StretchError, UsageError
from stretch.capture.captured import Captured
from stretch.capture.hooks import check_hooks
from stretch.capture.inputs import ONLY, Inputs, InputShapes, whole_numbers
from stretch.capture.lower import Lowering
from stretch.capture.results import left_out
from stretch.capture.structure import tensors
from stretch.capture.tracers import ShapedTracer, Tracer, source_line
from stretch.capture.values import Values

#: Where a module keeps its tensors and the modules within.
_TABLES = ("_parameters", "_buffers", "_modules")


def capture_traced(module: nn.Module, input_shape: InputShapes | Inputs = (1, 3, 224, 224), name: str | None = None) -> Captured:
    """Lower `module` to an operator graph by tracing it in evaluation mode.

    Args:
        module: A network of tensors; it and every module within it are left in the mode they were in.
        input_shape: As of `stretch.capture.capture`.
    """
    name = name or type(module).__name__
    with evaluating(module):
        given = Inputs.of(input_shape, module)
        check_hooks(module, given, name)
        traced = _trace(module, given, name)
        values, same = _run(module, traced, given, name)
        lowering = Lowering(traced, values, name, named=given.named)
        graph = lowering.graph()
        if not same:
            raise StretchError(
                f"`{name}` computes something else when it is traced by torch.fx",
                "its forward must not draw random numbers in evaluation, nor change a tensor that it reads again under another name",
            )
        weights = {op.name: lowering.weights[op.name] for op in graph.ops if op.name in lowering.weights}
        warnings = left_out(lowering.returned, [op.name for op in graph.inputs])
        return Captured(graph, weights, module, returned=lowering.returned, warnings=tuple(warnings))


@contextlib.contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode for a while; modules within may have been in different modes."""
    with unchanged(module):
        module.eval()
        yield


@contextlib.contextmanager
def unchanged(module: nn.Module) -> Iterator[None]:
    """What a network keeps for its next run is forgotten: a tracer hands it what is no tensor."""
    parts = [(part, dict(vars(part)), [dict(getattr(part, table)) for table in _TABLES]) for part in module.modules()]
    try:
        yield
    finally:
        for part, own, tables in parts:
            vars(part).clear()
            vars(part).update(own)
            for table, content in zip(_TABLES, tables, strict=True):
                there = getattr(part, table)
                there.clear()
                there.update(content)


def _trace(module: nn.Module, given: Inputs, name: str) -> fx.GraphModule:
    """Trace with symbols; where the network decides by shapes, with those that these inputs give."""
    tracer: Tracer = Tracer(autowrap_functions=(), param_shapes_constant=True)
    try:
        with unchanged(module):
            graph = tracer.trace(module)
            return fx.GraphModule(tracer.root, graph)
    except Exception as first:
        shaped = ShapedTracer(given)
        try:
            with unchanged(module):
                graph = shaped.trace(module)
                return fx.GraphModule(shaped.root, graph)
        except Exception as error:
            check_input(module, given, name)
            raise StretchError(
                f"`{name}` cannot be traced by torch.fx: {_last_line(first)}{source_line(error) or source_line(first)}",
                "its forward must not branch on tensor values; give a factory of the traceable part as `module:factory`",
            ) from error


def check_input(module: nn.Module, given: Inputs, name: str, device: torch.device | str = "cpu") -> None:
    """Tell inputs that the network itself rejects from a network that cannot be captured."""
    try:
        with torch.no_grad():
            given.call(module, given.random(device=device))
    except Exception as error:
        raise _rejected(error, given, name) from error


#: What torch says where it needs whole numbers, such as those of words.
_WHOLE = ("expected tensor for argument #1 'indices'", "tensors used as indices must be long")


def _rejected(error: Exception, given: Inputs, name: str) -> UsageError:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if any(each in reason.lower() for each in _WHOLE):
        return whole_numbers(name, source_line(error))
    size = "an input of" if len(given.shapes) == 1 else "inputs of"
    return UsageError(
        f"`{name}` rejects {size} {given}: {reason}{source_line(error)}", "choose another size with --input, such as 3x224x224"
    )


def _last_line(error: Exception) -> str:
    """Fx raises whatever the module's own code raises; the last line of it says why."""
    return str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__


def _run(module: nn.Module, traced: fx.GraphModule, given: Inputs, name: str) -> tuple[Values, bool]:
    """Run the traced network and the network itself; whether they agree."""
    waiting = dict(zip(given.shapes, given.random(), strict=True))
    arguments: list[Any] = []
    for node in (node for node in traced.graph.nodes if node.op == "placeholder"):
        target = str(node.target)
        own = target if given.named else ONLY
        if own in waiting and (given.named or not node.args):
            arguments.append(waiting.pop(own).clone())
        elif target.startswith("*"):
            # nothing is given beyond what has a name
            arguments += []
        elif node.args:
            arguments.append(node.args[0])
        else:
            raise StretchError(
                f"`{name}` needs exactly one input tensor, its forward takes {_named(traced)}",
                "give each of its inputs a shape, as a mapping from their names or with --input NAME=SHAPE",
            )
    if waiting:
        raise StretchError(f"`{name}` needs exactly one input tensor, its forward takes none", "give a network that reads its input")
    values = Values(traced)
    try:
        with torch.no_grad():
            # In-place operations write into what they are given.
            got = values.run(*arguments)
            want = values.returned = given.call(module, given.random())
    except Exception as error:
        raise _rejected(error, given, name) from error
    mine, theirs = tensors(got), tensors(want)
    return values, len(mine) == len(theirs) and all(agrees(a, b) for a, b in zip(mine, theirs, strict=True))


def _named(traced: fx.GraphModule) -> str:
    """The inputs of a traced network that have no default, by name."""
    return ", ".join(node.name for node in traced.graph.nodes if node.op == "placeholder" and not node.args) or "none"


def agrees(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two results differ by no more than rounding; not-a-number equals itself."""
    if a.shape != b.shape:
        return False
    finite = b[b.isfinite()]
    slack = 1e-4 * float(finite.abs().max()) if finite.numel() else 0.0
    return torch.allclose(a, b, rtol=0.0, atol=slack, equal_nan=True)
