import pytest

torch = pytest.importorskip("torch")

from stretch.api import branch  # noqa: E402
from stretch.export.facts import bundle_facts  # noqa: E402
from stretch.planning.config import PlanConfig  # noqa: E402
from tests.predictors.specified import specified  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.mark.slow
def test_facts_of_a_plan_have_the_times_and_energies_of_every_processor_it_may_use(captured):
    profile = specified("mi9")
    planned = branch("tiny_resnet", profile, config=PlanConfig(alpha=1000.0, beta=1000.0, macs=(0.5, 2.0), segment_macs=0.1)).plan
    facts = bundle_facts(planned, profile, "file", "trained")
    assert (facts.device, facts.weights_source, facts.weights_detail) == ("mi9", "file", "trained")
    ways = facts.alternatives(captured("tiny_resnet").graph)
    assert set(ways) == set(profile.processors)
    for name, way in ways.items():
        assert way.ms > 0
        power = profile.processor(name).cores.power_w
        assert way.mj == (None if power is None else pytest.approx(power.value * way.ms))
    assert facts.little_cores == profile.little_cores.value
