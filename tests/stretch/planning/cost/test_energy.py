"""Energy of a timeline."""

import pytest

from predictors.energy import EnergyModel
from stretch.planning.config import PlanConfig
from stretch.planning.cost.energy import run_mj
from stretch.planning.plan import plan
from tests.predictors.networks import small_resnet
from tests.stretch.planning.spaces import LOOSE, waiting


@pytest.mark.slow
def test_processors_take_power_while_they_compute_and_while_they_wait():
    device = waiting()
    result = plan(small_resnet(96), device, PlanConfig(processors=("cpu", "gpu"), **LOOSE))
    busy = {"cpu": 0.0, "gpu": 0.0}
    for row in result.run.segments:
        for branch in row.branches:
            busy[branch.scale.processor] += branch.ms * branch.contention
    model = EnergyModel(device)
    waited = sum({"cpu": 0.4, "gpu": 0.3}[name] * (result.run.makespan_ms - ms) for name, ms in busy.items())
    idled = 0.1 * result.run.makespan_ms  # the DSP has no work
    assert run_mj(result.run, device) == pytest.approx(sum(model.mj(name, ms) for name, ms in busy.items()) + waited + idled)
    assert result.energy_mj == run_mj(result.run, device)
