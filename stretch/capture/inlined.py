"""Parts of a network that run under a switch of torch's, such as ``with torch.no_grad()``: an exported program calls them as graphs."""

from typing import Any

import torch
from torch import fx

#: Higher-order operators of such parts, and how many arguments stand before the part's graph.
_SWITCHES = {"wrap_with_set_grad_enabled": 1, "wrap_with_autocast": 4}


def inline(program: torch.export.ExportedProgram) -> None:
    """Put the nodes of such parts in place of the calls; one that computes in another precision stays as it is.

    What they compute is the same. Gradients of what is captured pass through them.
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


def _replace(graph: fx.Graph, call: fx.Node, part: fx.Graph, given: tuple[Any, ...]) -> None:
    """The nodes of a graph in place of its call."""
    arriving = [node for node in part.nodes if node.op == "placeholder"]
    known: dict[fx.Node, Any] = dict(zip(arriving, given, strict=True))
    with graph.inserting_before(call):
        results = graph.graph_copy(part, known)
    for reader in list(call.users):
        reader.replace_all_uses_with(results[reader.args[1]])  # type: ignore[index]
        graph.erase_node(reader)
    graph.erase_node(call)
