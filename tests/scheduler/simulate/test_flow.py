"""Several plans and several users under one clock."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.adapt.policy import Policy, Probe, Probed, Ran
from scheduler.simulate.arrivals import Arrivals
from scheduler.simulate.clock import Clock
from scheduler.simulate.flow import Look
from scheduler.simulate.load import Load
from scheduler.simulate.networks import Network, alternative_of
from scheduler.simulate.scene import Scene
from tests.effort import examples
from tests.scheduler.simulate.plans import chain, single
from tests.scheduler.simulate.test_clock import timed_plans

BOTH = Network("both", *chain([{"cpu": (0.0, 10.0, 0.0), "gpu": (1.0, 10.0, 1.0)}] * 2))
CPU = Network("cpu", *single("cpu", 36.0))
GPU = Network("gpu", *single("gpu", 34.0))
BUSY = (Load("gpu", 0.9, 400.0, 2000.0),)


def test_work_moves_away_from_a_contended_processor_and_returns():
    still = Clock(BOTH, Scene(runs=200, loads=BUSY)).run()
    found = Clock((BOTH, CPU, GPU), Scene(runs=200, loads=BUSY)).run()
    (served,) = found.users
    assert served.decided[0].decision.kind == "move"
    assert served.decided[-1].decision.kind == "return"
    assert served.decided[-1].decision.after == "both"
    assert served.decided[-1].at_ms > 2000 > served.decided[0].at_ms > 400
    assert sum(served.ran.values()) == 200
    assert served.ran["cpu"] > 20
    assert found.latencies_ms[-1] == found.latencies_ms[0] == still.latencies_ms[0]
    # while the load lasts, most inferences take what the cpu alone takes, not ten times the gpu's time
    assert found.elapsed_ms < still.elapsed_ms
    slow, fewer = (sum(ms > 100 for ms in each.latencies_ms) for each in (still, found))
    assert 0 < fewer < slow


def test_decisions_are_those_of_the_policy_told_the_same_inferences_and_probes():
    found = Clock((BOTH, CPU, GPU), Scene(runs=200, loads=BUSY, traced=200)).run()
    policy = Policy([alternative_of(each) for each in (BOTH, CPU, GPU)])
    state, decided, look = policy.begin(), [], None
    for number, trace in enumerate(found.traces):
        took = {}
        for span in trace.spans:
            if span.kind in ("subgraph", "join"):
                took[span.processor] = took.get(span.processor, 0.0) + span.ms
        ran, now = policy.alternatives[state.present], trace.end_ns / 1e6
        state, decision = policy.after(state, Ran(number, ran.name, ran.computing_ms, took))
        decided += [(decision.inference, decision.kind, decision.after)] if decision else []
        if look is not None and look[0] + look[2] <= now:
            state, decision = policy.after(state, Probed(number, look[1].processor, look[1].expected_ms, look[2]))
            decided += [(decision.inference, decision.kind, decision.after)]
            look = None
        elif decision is not None and decision.probe is not None:
            # a tenth of the processor is left as long as the load lasts
            look = now, decision.probe, decision.probe.expected_ms * (10 if 400 <= now < 2000 else 1)
    want = [each.decision for each in found.users[0].decided]
    assert decided == [(each.inference, each.kind, each.after) for each in want]


@given(st.floats(0.1, 50), st.lists(st.tuples(st.floats(0.1, 10), st.floats(0, 1)), min_size=1, max_size=20), st.floats(0.05, 1))
def test_probe_is_over_when_its_work_is_done_at_the_rates_of_the_time(ms, stretches, rate):
    look, now, done = Look(Probe("gpu", "both", ms), 5.0, rate), 5.0, 0.0
    for lasts, after in stretches:
        took = look.took(now + lasts, after)
        if done + lasts * rate < ms * (1 - 1e-9):
            assert took is None
        elif took is not None:
            assert now - 5 <= took <= now + lasts - 5 + 1e-9
            assert done + (took - (now - 5)) * rate == pytest.approx(ms)
            return
        now, done, rate = now + lasts, done + lasts * rate, after


@pytest.mark.slow
@settings(max_examples=examples(20))
@given(st.integers(2, 4), st.sampled_from([None, Arrivals("poisson", 20.0)]), st.integers(0, 3))
def test_inferences_in_flight_end_on_the_plan_they_began_on(in_flight, arrivals, seed):
    found = Clock((BOTH, CPU, GPU), Scene(runs=120, in_flight=in_flight, arrivals=arrivals, loads=BUSY, seed=seed, traced=120)).run()
    (served,) = found.users
    assert len(served.latencies_ms) == 120
    steps = [{span.name for span in trace.spans if span.kind == "subgraph"} for trace in served.traces]
    assert {frozenset(each) for each in steps} <= {frozenset(each.plan.subgraphs) for each in (BOTH, CPU, GPU)}


@pytest.mark.slow
@settings(max_examples=examples(30))
@given(timed_plans(), timed_plans(), st.integers(1, 3), st.integers(1, 2))
def test_users_share_processors_and_none_runs_two_steps_at_once(one, other, in_flight, theirs):
    scene = Scene(runs=6, in_flight=in_flight, traced=6)
    found = Clock(Network("a", *one), scene, [(Network("b", *other), Scene(runs=40, in_flight=theirs, traced=40))]).run()
    ended = [span for served in found.users for trace in served.traces for span in trace.spans if span.kind == "subgraph"]
    for name in {span.queue for span in ended} - {"calling thread"}:
        mine = sorted((span.start_ns, span.end_ns) for span in ended if span.queue == name)
        assert all(end <= start + 1 for (_, end), (start, _) in pairwise(mine))
    assert len(found.users[0].latencies_ms) == 6
    assert found.elapsed_ms == pytest.approx(max(trace.end_ns for trace in found.users[0].traces) / 1e6)
