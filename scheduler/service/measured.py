"""What sessions take on this machine, as networks that can be simulated."""

from collections.abc import Sequence
from statistics import median

from scheduler.runtime.inputs import zeros
from scheduler.runtime.session import Session
from scheduler.runtime.trace import Trace
from scheduler.simulate.networks import Network
from scheduler.simulate.times import StepTime


def measured_network(name: str, session: Session, quiet: int = 5) -> Network:
    """A session's plan, with what its steps took in inferences one at a time; nothing else should run then."""
    x = zeros(session.bundle.manifest)
    traces: list[Trace] = []
    for _ in range(quiet + 1):
        session.submit(x).result()
        traces.append(session.submitted_traces[-1])
    plan, places = session.plan, session.places
    times = {}
    for step in plan.order:
        ms = _step_ms(traces[1:], step)
        if step in places:
            times[step] = StepTime(places[step].queue, (("subgraph", ms),))
        else:
            times[step] = StepTime(next(span.queue for span in traces[-1].spans if span.name == step), (("join", ms),))
    return Network(name, plan, places, times)


def _step_ms(traces: Sequence[Trace], step: str) -> float:
    """Median of what a step took of its queue, ms; conversions at its border lie within it."""
    return median(sum(span.ms for span in trace.spans if span.name == step) for trace in traces)
