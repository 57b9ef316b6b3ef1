"""From a simplified graph to kernel launches: each node by the template of its operator."""

from collections.abc import Callable
from dataclasses import replace
from math import prod

from scheduler.delegates.opencl import templates
from scheduler.delegates.opencl.device import Traits
from scheduler.delegates.opencl.graph import KernelGraph, KernelNode
from scheduler.delegates.opencl.launch import Launch
from scheduler.delegates.opencl.lowering import KernelLowering, UnsupportedError
from scheduler.delegates.opencl.schedule import Options, Schedules
from scheduler.delegates.opencl.templates.move import move_launch
from scheduler.delegates.opencl.tensors import Blocking, plain


def lower(graph: KernelGraph, blocking: Blocking, traits: Traits, options: Options, schedules: Schedules) -> list[Launch]:
    """The launches that compute a simplified and fused graph, in order."""
    state = KernelLowering(graph, blocking, traits, options, schedules, move_launch)
    for node in graph.nodes:
        template = template_of(node)
        if template is None:
            raise UnsupportedError(f"node `{node.name}` is a {node.op}, for which the opencl delegate has no kernel")
        before = len(state.launches)
        try:
            template(state, node)
        except UnsupportedError as error:
            if error.message.startswith("node "):
                raise
            raise UnsupportedError(f"node `{node.name}` ({node.op}): {error.message}") from error
        for i in range(before, len(state.launches)):
            state.launches[i] = replace(state.launches[i], merged=node.merged)
    for name in graph.outputs:
        _finish(state, name)
    return state.launches


def refusals(graph: KernelGraph, blocking: Blocking, traits: Traits, options: Options, schedules: Schedules) -> dict[str, str]:
    """Every node that no kernel computes, by name, with the reason; what it would write counts as there for those behind it."""
    state = KernelLowering(graph, blocking, traits, options, schedules, move_launch)
    reasons: dict[str, str] = {}
    for node in graph.nodes:
        template = template_of(node)
        try:
            if template is not None:
                template(state, node)
                continue
            reasons[node.name] = f"the opencl delegate has no kernel for {node.op}"
        except UnsupportedError as error:
            reasons[node.name] = error.message
        state.alias(node.output, plain(node.output, state.shape(node.output), "input"))
    return reasons


def _finish(state: KernelLowering, name: str) -> None:
    """Bring an output that is blocked, or elements of another tensor, into the caller's memory."""
    target = plain(name, state.shape(name), "output")
    source = state.own_plain(name)
    if source == target:
        return
    if source is not None and state.is_plain(name):
        count = prod(source.shape)
        state.move(replace(plain(source.buffer, (1, count), source.where)), plain(name, (1, count), "output"), name)
    else:
        state.move(state.blocked(name), target, name)


def template_of(node: KernelNode) -> Callable[[KernelLowering, KernelNode], None] | None:
    """The function that lowers a node, or None."""
    return templates.TEMPLATES.get(node.op)
