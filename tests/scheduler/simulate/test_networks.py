import pytest
from hypothesis import given

from scheduler.simulate.networks import Network, alternative_of
from tests.scheduler.simulate.test_clock import timed_plans


@pytest.mark.slow
@given(timed_plans())
def test_every_step_waits_for_those_that_write_what_it_reads(network):
    plan, _, times = network
    work = alternative_of(Network("n", *network)).work
    assert [each.name for each in work] == list(plan.order)
    seen = set()
    for each in work:
        assert set(each.after) <= seen
        seen.add(each.name)
        reads = set(plan.step(each.name).inputs) - set(plan.inputs)
        assert reads <= {tensor for name in each.after for tensor in plan.step(name).outputs}
        assert each.computing_ms + each.other_ms == sum(ms for _, ms in times[each.name].parts)
