"""Plans and times for the tests of the simulation."""

from scheduler.simulate.networks import StepTime
from tests.scheduler.runtime.plans import planned

PROCESSORS = ("cpu", "gpu", "dsp")


def chain(segments):
    """Segments one after the other, each with a branch on some processors and a join: the order on every queue is fixed."""
    subgraphs, joins, times, arriving = [], [], {}, "x"
    for number, branches in enumerate(segments):
        current = []
        for processor, (into, computing, out) in branches.items():
            name = f"s{number}.{processor}"
            subgraphs.append((name, processor, arriving, f"{name}.y"))
            current.append(f"{name}.y")
            times[name] = StepTime(processor, (("in", into), ("subgraph", computing), ("out", out)))
        joins.append((f"s{number}.join", current, f"y{number}"))
        times[f"s{number}.join"] = StepTime("cpu", (("join", 0.25),))
        arriving = f"y{number}"
    return *planned(subgraphs, joins, outputs=(arriving,)), times


def single(processor, ms):
    return *planned([("s", processor, "x", "y")]), {"s": StepTime(processor, (("subgraph", ms),))}
