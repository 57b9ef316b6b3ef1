"""`stretch simulate`: simulate a bundle on its device, or a table of steps, with disturbances."""

from stretch.api.verbs import SimulatedBundle, SimulatedDevice, SimulateOptions
from stretch.api.verbs import simulate as simulate_bundle
from stretch.cli.output import Output
from stretch.cli.pages import Html


def simulate(out: Output, bundle: SimulatedBundle, options: SimulateOptions, device: SimulatedDevice = None, html: Html = None) -> None:
    """Simulate a bundle on its device, with load, jitter, other bundles and timed requests."""
    from scheduler.simulate.clock import PROGRESS_EVERY
    from stretch.report.execution import simulation_page

    with out.progress("simulating", total=options.inferences // PROGRESS_EVERY) as step:
        answer, simulated = simulate_bundle(bundle, device, options, progress=step)
    out.show(answer, lambda answer: simulation_page(answer, simulated.latencies_ms, simulated.traces[0]), html)
