"""The simulated clock of one user, of several and of plans that change."""

from dataclasses import replace
from itertools import pairwise
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictors.errors import UsageError
from scheduler.runtime.machine import CALLING_THREAD
from scheduler.simulate.clock import Clock, TurnTaking
from scheduler.simulate.networks import Network, StepTime
from scheduler.simulate.scene import Arrivals, Load, Scene
from scheduler.simulate.schedule import Job, schedule
from tests.effort import examples
from tests.scheduler.runtime.plans import plans
from tests.scheduler.simulate.plans import PROCESSORS, chain, single

ms = st.floats(0.5, 20)
branches = st.dictionaries(st.sampled_from(PROCESSORS), st.tuples(ms, ms, ms), min_size=2)
chains = st.lists(branches, min_size=1, max_size=4).map(chain)


def simulated(network, **scene):
    return Clock(Network("n", *network), Scene(**scene)).run()


#: Roots of primes: no two sums of whole numbers and some of them are alike, so that no two steps end at once.
ROOTS = [0.01 * prime**0.5 for prime in (2, 3, 5, 7, 11, 13, 17, 19, 23)]


@st.composite
def timed_plans(draw):
    """Any plan, with a time for each step."""
    plan, places = draw(plans())
    took = {name: draw(st.integers(1, 20)) + ROOTS[number] for number, name in enumerate(plan.order)}
    times = {name: StepTime(places[name].processor, (("subgraph", took[name]),)) for name in plan.subgraphs}
    times |= {name: StepTime("cpu", (("join", took[name]),)) for name in plan.joins}
    return plan, places, times


@given(timed_plans())
def test_inference_alone_ends_when_the_planners_schedule_does(network):
    plan, places, times = network
    inline = next((place.queue for place in places.values() if place.dispatch == "inline"), CALLING_THREAD)
    steps = [*plan.joins.values(), *plan.subgraphs.values()]  # a queue takes joins first
    writers = {tensor: number for number, step in enumerate(steps) for tensor in step.outputs}
    jobs = []
    for step in steps:
        queue = inline if step.name in plan.joins else places[step.name].queue
        reads = tuple(dict.fromkeys(writers[tensor] for tensor in step.inputs if tensor in writers))
        jobs.append(Job(queue, sum(part for _, part in times[step.name].parts), reads))
    result = simulated(network, traced=1)
    want = schedule(jobs)
    assert result.latencies_ms == (pytest.approx(want.ms),)
    assert {span.name: span.start_ns / 1e6 for span in result.traces[0].spans} == pytest.approx(
        {step.name: start for step, start in zip(steps, want.starts, strict=True)}, abs=1e-5
    )


@pytest.mark.slow
@settings(max_examples=examples(30))
@given(timed_plans(), st.integers(1, 4), st.sampled_from([None, Arrivals("periodic", 9.0), Arrivals("poisson", 9.0)]))
def test_nothing_runs_two_steps_at_once_and_no_work_is_lost(network, in_flight, arrivals):
    plan, _, times = network
    loads = (Load("cpu", 0.5, 3, 40),) if any(time.processor == "cpu" for time in times.values()) else ()
    result = simulated(network, runs=12, in_flight=in_flight, arrivals=arrivals, loads=loads, jitter=0.2, traced=12)
    spans = [span for trace in result.traces for span in trace.spans]
    assert len(result.traces) == 12
    assert all(sorted(span.name for span in trace.spans) == sorted(plan.order) for trace in result.traces)
    for key in ("queue", "processor"):
        # where every queue has a thread, any of them joins, whatever runs on the processor of the join
        current = [span for span in spans if key == "queue" or span.kind == "subgraph"]
        for name in {getattr(span, key) for span in current}:
            mine = sorted((span.start_ns, span.end_ns) for span in current if getattr(span, key) == name)
            assert all(end <= start + 1 for (_, end), (start, _) in pairwise(mine))
    assert result.elapsed_ms == pytest.approx(max(trace.end_ns for trace in result.traces) / 1e6)
    assert result.latencies_ms == pytest.approx([trace.makespan_ms for trace in result.traces], abs=1e-5)
    running = [sum(a.start_ns <= t.start_ns < a.end_ns for a in result.traces) for t in result.traces]
    assert arrivals is not None or max(running) <= in_flight


@pytest.mark.parametrize(
    ("loads", "end"),
    [
        ((Load("gpu", 0.5, 0, 6),), 13.0),
        ((Load("gpu", 0.5, 2, 6),), 12.0),
        ((Load("gpu", 0.5, 2, 100),), 18.0),
        ((Load("gpu", 1.0, 2, 6),), 14.0),
        ((Load("gpu", 0.5, 2, 6), Load("gpu", 0.25, 4, 6)), 12.5),
        ((Load("gpu", 0.5, 10, 60),), 10.0),
    ],
)
def test_load_slows_what_computes_while_it_lasts(loads, end):
    assert simulated(single("gpu", 10.0), loads=loads).latencies_ms == (pytest.approx(end),)


def test_requests_wait_for_a_lane_and_their_waiting_counts():
    result = simulated(single("gpu", 10.0), runs=4, arrivals=Arrivals("periodic", 4.0))
    assert result.latencies_ms == pytest.approx((10, 16, 22, 28))
    assert result.elapsed_ms == pytest.approx(40)
    early = simulated(single("gpu", 10.0), runs=4, arrivals=Arrivals("periodic", 25.0))
    assert early.latencies_ms == pytest.approx((10, 10, 10, 10))
    assert early.elapsed_ms == pytest.approx(85)


BOTH = Network("both", *chain([{"cpu": (0.0, 10.0, 0.0), "gpu": (1.0, 10.0, 1.0)}] * 2))
CPU = Network("cpu", *single("cpu", 36.0))
GPU = Network("gpu", *single("gpu", 34.0))


def network(name, *segments):
    return Network(name, *chain(segments))


def whole(name, processor, ms):
    return Network(name, *single(processor, ms))


def segments():
    branch = st.tuples(st.integers(0, 2), st.integers(1, 9), st.integers(0, 2))
    return st.lists(st.dictionaries(st.sampled_from(PROCESSORS), branch, min_size=1, max_size=3), min_size=1, max_size=3)


def test_rare_urgent_request_waits_for_one_subgraph_and_not_for_a_queue():
    long, urgent = whole("long", "cpu", 5.0), whole("urgent", "cpu", 1.0)
    scene = Scene(runs=40, in_flight=4)
    theirs = Scene(runs=100, arrivals=Arrivals("periodic", 20.0), deadline_ms=8.0)
    workloads = [(urgent, theirs), *((long, replace(scene, runs=1000)) for _ in range(3))]
    turns = Clock(long, scene, workloads, sharing=TurnTaking()).run().clients[1]
    lined = Clock(long, scene, workloads).run().clients[1]
    assert max(turns.latencies_ms) <= 6.0 + 1e-9
    assert max(lined.latencies_ms) > 15


def test_weights_divide_a_processor():
    current, other = whole("a", "cpu", 1.0), whole("b", "cpu", 1.0)
    ran = Clock(current, Scene(runs=300, in_flight=2), [(other, Scene(runs=10_000, in_flight=2))], sharing=TurnTaking((3.0,))).run()
    assert len(ran.clients[1].latencies_ms) == pytest.approx(100, abs=3)


def test_what_makes_no_sense_is_refused():
    current = whole("a", "cpu", 1.0)
    with pytest.raises(UsageError, match="do not take turns"):
        Clock((current, whole("b", "cpu", 1.0)), Scene(), sharing=TurnTaking())
    with pytest.raises(UsageError, match="weight"):
        Clock(current, Scene(), sharing=TurnTaking((-1.0,)))
    with pytest.raises(UsageError, match="patience"):
        Clock(current, Scene(), sharing=TurnTaking(patience_ms=0.0))
    for options in ({"deadline_ms": 0.0}, {"deadline_ms": inf}, {"priority": 1000}):
        with pytest.raises(UsageError):
            Scene(**options)
