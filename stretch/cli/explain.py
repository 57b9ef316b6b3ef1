"""`stretch explain`: placement, reason and cost of each operator of a bundle."""

from stretch.api.verbs import explain as explain_placement
from stretch.cli.extensions import asked_for, extensions_of
from stretch.cli.options import Call, calls
from stretch.cli.output import Output, verb


@verb
@calls(explain_placement, *extensions_of("explain"))
def explain(out: Output, run: Call, *extensions: Call) -> None:
    """Show where each operator runs, why, and its cost."""
    from stretch.report.execution import explanation_page

    if (instead := asked_for(extensions)) is not None:
        values = run.keywords
        instead.explain(out, values["what"], values["device"], values["mapping"])
        return
    with out.progress("explaining") as progress:
        answer = run(progress=progress)
    out.show(answer, explanation_page)
