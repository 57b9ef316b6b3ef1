"""From a simplified graph to kernel launches, node by node."""

from dataclasses import replace

from scheduler.delegates.opencl.device import Traits
from scheduler.delegates.opencl.graph import Graph
from scheduler.delegates.opencl.launch import Launch
from scheduler.delegates.opencl.lowering import Lowering, UnsupportedError
from scheduler.delegates.opencl.schedule import Options, Schedules
from scheduler.delegates.opencl.templates import TEMPLATES
from scheduler.delegates.opencl.templates.move import move_launch
from scheduler.delegates.opencl.tensors import Layout


def lower(graph: Graph, layout: Layout, traits: Traits, options: Options, schedules: Schedules) -> list[Launch]:
    """The launches that compute a simplified and fused graph, in order.

    Raises:
        UnsupportedError: Names the first node that no kernel computes, and why.
    """
    state = Lowering(graph, layout, traits, options, schedules, move_launch)
    for node in graph.nodes:
        template = TEMPLATES.get(node.op)
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
        state.finish(name)
    return state.launches
