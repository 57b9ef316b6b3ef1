from hypothesis import given
from hypothesis import strategies as st

from scheduler.adapt.alternatives import Alternative, Work
from scheduler.simulate.clock import Clock
from scheduler.simulate.networks import Network, alternative_of
from scheduler.simulate.scene import Scene
from tests.scheduler.simulate.plans import PROCESSORS
from tests.scheduler.simulate.test_clock import chains


@given(chains, st.dictionaries(st.sampled_from(PROCESSORS), st.floats(0.2, 20)))
def test_chain_takes_what_the_simulation_of_slower_processors_says(network, factors):
    plan, places, times = network
    slower = {
        name: type(time)(
            time.processor,
            tuple((doing, ms * (factors.get(time.processor, 1.0) if doing in ("subgraph", "join") else 1.0)) for doing, ms in time.parts),
        )
        for name, time in times.items()
    }
    (simulated,) = Clock(Network("n", plan, places, slower), Scene()).run().latencies_ms
    assert abs(alternative_of(Network("n", plan, places, times)).expected_ms(factors) - simulated) < 1e-6


def test_computing_is_added_up_by_processor_and_exchanges_do_not_grow():
    work = (Work("a", "cpu", "cpu", 2.0, 1.0, ()), Work("b", "gpu", "gpu", 3.0, 0.5, ("a",)), Work("c", "cpu", "cpu", 4.0, 0.0, ("b",)))
    plan = Alternative("p", work)
    assert plan.computing_ms == {"cpu": 6.0, "gpu": 3.0}
    assert plan.expected_ms({}) == 10.5
    assert plan.expected_ms({"gpu": 10.0}) == 37.5
