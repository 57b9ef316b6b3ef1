"""The subgraphs of a branched graph, each of which one processor runs without waiting for another."""

from dataclasses import replace

from predictors.graph import Op, OpGraph
from stretch.planning.divisions.rows import ENTRY_ROWS


def subgraph_names(graph: OpGraph) -> list[str]:
    """Subgraphs of a branched graph in topological order, joins left out."""
    return list(dict.fromkeys(op.tags["subgraph"] for op in graph.ops if "origin" in op.tags))


def subgraph_of(graph: OpGraph, name: str) -> OpGraph:
    """Extract one subgraph; tensors keep their names, and an input of which it reads some rows has only these."""
    cut = entry_rows(graph, name)
    ops = [op for op in graph.ops if op.tags.get("subgraph") == name and op is not cut]
    inside = {op.name for op in ops}
    outputs = [op.name for op in ops if op.name in graph.outputs or any(r not in inside for r in graph.consumers[op.name])]
    if cut:
        source = cut.inputs[0]
        entries = [Op(source, "input", attrs={"shape": cut.shape})]
        ops = [replace(op, inputs=tuple(source if i == cut.name else i for i in op.inputs)) for op in ops]
    else:
        reads = dict.fromkeys(i for op in ops for i in op.inputs if i not in inside)
        entries = [Op(source, "input", attrs={"shape": graph.by_name[source].shape}) for source in reads]
    return OpGraph.build(f"{graph.name}.{name}", [*entries, *ops], outputs)


def entry_rows(graph: OpGraph, name: str) -> Op | None:
    """The operator of a subgraph that slices the rows it reads from its input; None if it reads all."""
    return next((op for op in graph.ops if op.tags.get("subgraph") == name and op.tags["origin"] == ENTRY_ROWS), None)
