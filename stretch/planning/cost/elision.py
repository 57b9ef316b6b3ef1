"""What a band of rows is handed: of a tensor that crosses to another processor, only the rows that it reads.

A band begins with a cut out of what arrives. Where that comes over a link, the
cut is a part of the conversion: only those rows are converted. Where the tensor
lies on the band's own processor already, the cut is a view if the layout keeps
rows together, and else a copy.
"""

from dataclasses import replace

from predictors.graph import Op, OpGraph
from predictors.host import kind_of
from predictors.joins import meeting_of
from predictors.predictor import LatencyPredictor
from stretch.planning.design.bands import ENTRY_ROWS


def handed(graph: OpGraph) -> OpGraph:
    """A branch that is given the rows it reads: without the cut with which a band begins; others stay as they are.

    Args:
        graph: A branch, as `stretch.planning.design.scale` makes it.
    """
    cut = graph.by_name.get(ENTRY_ROWS)
    if cut is None:
        return graph
    source = graph.input
    ops = [Op(source.name, "input", attrs={"shape": cut.shape}, tags=source.tags)]
    for op in graph.ops:
        if op is source or op is cut:
            continue
        if ENTRY_ROWS in op.inputs:
            op = replace(op, inputs=tuple(source.name if name == ENTRY_ROWS else name for name in op.inputs))
        ops.append(op)
    return OpGraph.build(graph.name, ops, source.name if graph.output == ENTRY_ROWS else graph.output)


def cuts_itself(holder: str, processor: str, predictor: LatencyPredictor) -> bool:
    """Whether a band has to copy the rows it reads: the whole tensor is on its own processor, and rows are not together there."""
    if kind_of(holder) != kind_of(processor):
        return False
    return meeting_of("rows").copies(predictor.device.processor(processor).profile.layout)
