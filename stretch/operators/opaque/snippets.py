"""The output of torch's ONNX exporter for calls of torch's operators, cut into one piece per operator.

The exporter takes seconds for any input, so all calls of a graph go
through it at once. Its output is cached, because the files of a bundle share the same calls.
"""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
import torch
from onnx import helper
from torch import nn

from predictors.errors import MissingBackendError, StretchError, first_line, install_line, need
from predictors.shapes import Shape
from scheduler.formats.onnx.shapes import RULES
from scheduler.formats.onnx.shapes.node import unsupported_reason
from stretch.operators.formats.onnx import OPSET
from stretch.operators.opaque.calls import Calls, CheckedCalls, type_of


@dataclass(frozen=True)
class Snippet:
    """Nodes that compute one result."""

    inputs: tuple[str, ...]  # Names of the inputs in the order of the calls: reads, then constants.
    nodes: tuple[onnx.NodeProto, ...]  # Nodes in order.
    constants: tuple[onnx.TensorProto, ...]  # Initialisers of the nodes.
    output: str  # Name of the result.


#: Snippets by the text of the calls.
_CACHE: dict[str, Snippet] = {}


def prepare(requests: Iterable[tuple[Calls, Shape]]) -> None:
    """Export all calls that are not cached yet, at once."""
    new = {calls.text(): (calls, shape) for calls, shape in requests if calls.text() not in _CACHE}
    if not new:
        return
    try:
        _CACHE.update(zip(new, _export_onnx(list(new.values())), strict=True))
    except MissingBackendError:
        raise
    except Exception:
        # one by one, to find the one that fails
        for text, operator_calls in new.items():
            _CACHE[text] = _single_model(operator_calls)


def snippet_of(calls: Calls, shape: Shape) -> Snippet:
    """Return the nodes of some calls; see `prepare`."""
    prepare([(calls, shape)])
    return _CACHE[calls.text()]


class _AllCalls(nn.Module):
    """The calls of several operators, each with its own inputs."""

    def __init__(self, requests: Sequence[tuple[Calls, Shape]]) -> None:
        super().__init__()
        self._replays = [CheckedCalls(*calls_and_shape) for calls_and_shape in requests]

    def forward(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        """Return the result of each operator."""
        results, start = [], 0
        for replay in self._replays:
            middle = start + len(replay.calls.reads)
            end = middle + len(replay.calls.constants)
            results.append(replay(tensors[start:middle], tensors[middle:end]))
            start = end
        return results


def _single_model(calls_and_shape: tuple[Calls, Shape]) -> Snippet:
    try:
        return _export_onnx([calls_and_shape])[0]
    except Exception as error:
        names = ", ".join(call.operator for call in calls_and_shape[0].calls)
        # the exporter's own errors name only the place; the reason is in their causes
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        message = first_line(cause)
        raise StretchError(f"torch's exporter cannot write {names} in ONNX: {message}", "run this network with torch") from error


def _export_onnx(requests: Sequence[tuple[Calls, Shape]]) -> list[Snippet]:
    tensors: list[torch.Tensor] = []
    inputs: list[tuple[str, ...]] = []
    for number, (calls, _) in enumerate(requests):
        specs = (*calls.reads, *calls.constants)
        tensors += [torch.zeros(spec.shape, dtype=type_of(spec.dtype)) for spec in specs]
        inputs.append(tuple(f"i{number}_{i}" for i in range(len(specs))))
    outputs = [f"o{number}" for number in range(len(requests))]
    return _cut(_export(_AllCalls(requests), tensors, [name for group in inputs for name in group], outputs), inputs, outputs)


def _export(module: nn.Module, tensors: Sequence[torch.Tensor], names: Sequence[str], outputs: Sequence[str]) -> onnx.ModelProto:
    try:
        import onnxscript  # noqa: F401 - the exporter needs it
    except ImportError as error:
        raise MissingBackendError("torch's exporter needs `onnxscript`, which is not installed", install_line("torch")) from error
    before = logging.root.manager.disable
    # torch's reports about its own work are of no use here
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                module.eval(),
                tuple(tensors),
                dynamo=True,
                opset_version=OPSET,
                optimize=True,
                verbose=False,
                input_names=list(names),
                output_names=list(outputs),
            )
    finally:
        logging.disable(before)
    assert program is not None
    proto: onnx.ModelProto = program.model_proto
    return proto


def _cut(model: onnx.ModelProto, inputs: Sequence[tuple[str, ...]], outputs: Sequence[str]) -> list[Snippet]:
    """Return the part of a graph that leads to each of its outputs."""
    need(not model.functions, "it needs functions that ONNX itself does not have")
    made_by = {name: node for node in model.graph.node for name in node.output if name}
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    order = {id(node): i for i, node in enumerate(model.graph.node)}
    snippets = []
    for input_names, output in zip(inputs, outputs, strict=True):
        nodes: dict[int, Any] = {}
        read: dict[str, onnx.TensorProto] = {}
        waiting = [output]
        while waiting:
            name = waiting.pop()
            if name in constants:
                read[name] = constants[name]
            elif name in made_by and id(made_by[name]) not in nodes:
                nodes[id(made_by[name])] = made_by[name]
                waiting += [input_name for input_name in made_by[name].input if input_name]
        ordered = [nodes[key] for key in sorted(nodes, key=order.__getitem__)]
        _check(ordered)
        if ordered[-1].output[0] != output:
            # an operator has the name of the first result of its last node
            ordered.append(helper.make_node("Identity", [output], [f"{output}_alone"]))
        snippets.append(Snippet(input_names, tuple(ordered), tuple(read.values()), ordered[-1].output[0]))
    return snippets


def _check(nodes: Sequence[onnx.NodeProto]) -> None:
    """Refuse nodes that cannot be moved unchanged into another graph."""
    need(bool(nodes), "a result does not depend on what is read")
    for node in nodes:
        if node.domain not in ("", "ai.onnx") or any(attribute.HasField("g") for attribute in node.attribute):
            raise StretchError(f"it needs {node.op_type}, which runtimes for ONNX do not all have")
        need(node.op_type in RULES, unsupported_reason(node.op_type))
