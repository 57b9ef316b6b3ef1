"""Users who take turns under the simulation's clock."""

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictors.errors import UsageError
from scheduler.runtime.several import Several, User
from scheduler.simulate.arrivals import Arrivals
from scheduler.simulate.clock import Clock
from scheduler.simulate.networks import Network
from scheduler.simulate.scene import Scene
from scheduler.simulate.sharing import Sharing
from tests.effort import examples
from tests.scheduler.simulate.plans import PROCESSORS, chain, single


def network(name, *segments):
    return Network(name, *chain(segments))


def whole(name, processor, ms):
    return Network(name, *single(processor, ms))


def segments():
    branch = st.tuples(st.integers(0, 2), st.integers(1, 9), st.integers(0, 2))
    return st.lists(st.dictionaries(st.sampled_from(PROCESSORS), branch, min_size=1, max_size=3), min_size=1, max_size=3)


@pytest.mark.slow
@settings(max_examples=examples(40))
@given(segments(), segments(), st.integers(1, 3), st.one_of(st.none(), st.integers(1, 60)), st.integers(0, 3))
def test_the_runtime_s_machine_told_the_same_decides_the_same(one, other, lanes, deadline, seed):
    networks = (network("a", *one), network("b", *other))
    scene = Scene(runs=12, in_flight=lanes, jitter=0.2, seed=seed, deadline_ms=deadline)
    clock = Clock(networks[0], scene, [(networks[1], replace(scene, runs=1000))], sharing=Sharing((2.0,)))
    ran = clock.run()
    assert len(ran.users[0].latencies_ms) == 12
    events = list(clock.shared.events)
    users = {
        str(number): User(each.plan, each.placements, lanes, weight)
        for number, (each, weight) in enumerate(zip(networks, (2.0, 1.0), strict=True))
    }
    again = Several(users)
    assert [tuple(again.handle(event)) for event, _ in events] == [answer for _, answer in events]


def test_rare_urgent_request_waits_for_one_subgraph_and_not_for_a_queue():
    long, urgent = whole("long", "cpu", 5.0), whole("urgent", "cpu", 1.0)
    scene = Scene(runs=40, in_flight=4)
    theirs = Scene(runs=100, arrivals=Arrivals("periodic", 20.0), deadline_ms=8.0)
    workloads = [(urgent, theirs), *((long, replace(scene, runs=1000)) for _ in range(3))]
    turns = Clock(long, scene, workloads, sharing=Sharing()).run().users[1]
    lined = Clock(long, scene, workloads).run().users[1]
    assert max(turns.latencies_ms) <= 6.0 + 1e-9
    assert max(lined.latencies_ms) > 15


def test_weights_divide_a_processor():
    own, other = whole("a", "cpu", 1.0), whole("b", "cpu", 1.0)
    ran = Clock(own, Scene(runs=300, in_flight=2), [(other, Scene(runs=10_000, in_flight=2))], sharing=Sharing((3.0,))).run()
    assert len(ran.users[1].latencies_ms) == pytest.approx(100, abs=3)


def test_what_makes_no_sense_is_refused():
    own = whole("a", "cpu", 1.0)
    with pytest.raises(UsageError, match="do not take turns"):
        Clock((own, whole("b", "cpu", 1.0)), Scene(), sharing=Sharing())
    with pytest.raises(UsageError, match="weight"):
        Clock(own, Scene(), sharing=Sharing((-1.0,)))
    with pytest.raises(UsageError, match="patience"):
        Clock(own, Scene(), sharing=Sharing(patience_ms=0.0))
    for options in ({"deadline_ms": 0.0}, {"deadline_ms": inf}, {"priority": 1000}):
        with pytest.raises(UsageError):
            Scene(**options)
