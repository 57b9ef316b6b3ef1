"""`stretch explain`: placement, reason and cost of each operator of a bundle."""

from typing import Annotated, Any

from stretch.api.parameters import NO_PLACES, DelegateMap
from stretch.api.verbs import Explained, ExplainedDevice
from stretch.api.verbs import explain as explain_placement
from stretch.cli.extensions import tools_of
from stretch.cli.output import Output


def explain(
    out: Output,
    what: Explained,
    device: ExplainedDevice = None,
    mapping: DelegateMap = NO_PLACES,
    tool: Annotated[Any, tools_of("explain")] = None,
) -> None:
    """Show where each operator runs, why, and its cost."""
    from stretch.report.execution import explanation_page

    if tool is not None:
        tool.explain(out, what, device, mapping)
        return
    with out.progress("explaining") as progress:
        answer = explain_placement(what, device, mapping=mapping, progress=progress)
    out.show(answer, explanation_page)
