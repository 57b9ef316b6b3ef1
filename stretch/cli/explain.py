"""`stretch explain`: placement, reason and cost of each operator of a bundle, or of a file on a runtime."""

from stretch.api.verbs import explain as explain_placement
from stretch.cli.options import Call, calls
from stretch.cli.output import Output, verb


@verb
@calls(explain_placement)
def explain(out: Output, run: Call) -> None:
    """Show where each operator runs, why, and its cost."""
    from stretch.tools.report.execution import explanation_page, runtime_page

    with out.progress("explaining") as progress:
        answer = run(progress=progress)
    out.show(answer, explanation_page if run.keywords["runtime"] is None else runtime_page)
