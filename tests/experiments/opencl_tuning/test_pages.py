"""What tile costs were fitted to is not what they are shown on."""

import pytest

pytest.importorskip("pyopencl")

from experiments.opencl_networks.networks import NETWORKS
from experiments.opencl_tuning.gather import HELD_OUT
from experiments.records import read_record
from tests.contracts.repository import ROOT

EXPERIMENTS = ROOT / "experiments"


def test_fitted_networks_and_held_out_ones_are_different_and_both_recorded():
    assert not set(NETWORKS) & set(HELD_OUT)
    note = " ".join(read_record(EXPERIMENTS / "opencl_tuning" / "results" / "cost_model.json").notes)
    fitted, _, held_out = note.partition("held out:")
    assert all(name in fitted for name in NETWORKS)
    assert all(name in held_out for name in HELD_OUT)
