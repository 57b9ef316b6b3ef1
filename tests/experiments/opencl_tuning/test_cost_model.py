"""The fit of the tiles' costs, and which networks it is shown on."""

import pytest

from experiments.opencl_tuning.cost_model import CYCLES_A_MS, Measured, fit
from scheduler.delegates.opencl.schedule import KernelProblem, TileCosts

pytest.importorskip("pyopencl")


COSTS = TileCosts({(1, 1): 2.0, (4, 2): 5.0, (6, 2): 7.0}, 3.0)
SIZES = [(3136, 8, 64), (784, 16, 128), (196, 32, 1024), (49, 64, 512), (49, 8, 2048)]


def measured(costs):
    result = []
    for pixels, blocks, depth in SIZES:
        problem = KernelProblem("conv", f"{pixels} {blocks} {depth}", pixels, blocks, depth)
        times = {(vw, vc, first): costs.cycles(problem, vw, vc, 16) / CYCLES_A_MS for vw, vc in costs.steps for first in (0, 1)}
        result.append(Measured("net", problem, times))
    return result


def test_costs_that_times_were_made_from_are_found_again():
    fitted = fit(measured(COSTS), 16)
    assert fitted.load == pytest.approx(COSTS.load, abs=0.01)
    assert fitted.steps == pytest.approx(COSTS.steps, abs=0.01)
