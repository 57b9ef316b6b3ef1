"""The fit of the tiles' costs, and which networks it is shown on."""

import pytest

from experiments.opencl_tuning.cost_model import CYCLES_A_MS, Measured, fit
from scheduler.delegates.opencl.schedule import KernelProblem, TileCosts

pytest.importorskip("pyopencl")

from experiments.opencl_networks.networks import NETWORKS
from experiments.opencl_tuning.gather import HELD_OUT
from experiments.records import read_record
from tests.contracts.repository import ROOT

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


EXPERIMENTS = ROOT / "experiments"


def test_fitted_networks_and_held_out_ones_are_different_and_both_recorded():
    assert not set(NETWORKS) & set(HELD_OUT)
    note = " ".join(read_record(EXPERIMENTS / "opencl_tuning" / "results" / "cost_model.json").notes)
    fitted, _, held_out = note.partition("held out:")
    assert all(name in fitted for name in NETWORKS)
    assert all(name in held_out for name in HELD_OUT)
