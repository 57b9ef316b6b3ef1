"""A network as torch's own operators (ATen), whatever Python did in between.

`torch.export` runs the network once on tensors without data, so that neither
weights nor time matter.
"""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx, nn
from torch.export.graph_signature import OutputKind, TensorArgument

from predictors.errors import StretchError, UsageError, first_line, need
from stretch.network.capture.inputs import Inputs
from stretch.network.capture.trace import check_input


class ExportFailure(StretchError):
    """A network that torch.export refuses."""


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
