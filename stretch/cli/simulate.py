"""`stretch simulate`: simulate a bundle on its device, or a table of steps, with disturbances."""

from stretch.api.verbs import simulate as simulate_bundle
from stretch.cli.options import Call, calls
from stretch.cli.output import Output, verb
from stretch.cli.pages import Html


@verb
@calls(simulate_bundle)
def simulate(out: Output, run: Call, html: Html = None) -> None:
    """Simulate a bundle on its device, with load, jitter, other bundles and timed requests."""
    from scheduler.simulate.clock import PROGRESS_EVERY
    from stretch.report.execution import simulation_page

    with out.progress("simulating", total=run.keywords["inferences"] // PROGRESS_EVERY) as step:
        answer, simulated = run(progress=step)
    out.show(answer, lambda answer: simulation_page(answer, simulated.latencies_ms, simulated.traces[0]), html)
