"""What tile costs were fitted to is not what they are shown on."""

import re

import pytest

pytest.importorskip("pyopencl")

from experiments.opencl_networks.networks import NETWORKS, note_on_fit
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


def test_page_shows_rankings_of_networks_held_out_alone():
    template = (EXPERIMENTS / "blocks" / "cost_model.txt").read_text()
    rows = [each.partition("=")[0].strip() for each in re.search(r"^rows: (.*)", template, re.MULTILINE)[1].rstrip(" }").split("|")]
    rankings = read_record(EXPERIMENTS / "opencl_tuning" / "results" / "cost_model.json").tables["rankings"]
    assert rows == [row["ranking"] for row in rankings if row["ranking"].endswith("networks held out")]
    assert "cost_model.json#rankings -->" not in (EXPERIMENTS / "opencl_tuning" / "README.md").read_text()


@pytest.mark.parametrize("name", ["opencl_networks", "opencl_convolutions"])
def test_comparison_on_fitted_networks_says_so(name):
    record = read_record(EXPERIMENTS / name / "results" / "host.json")
    (note,) = record.notes
    assert "no network here is held out" in note
    assert all(network in note.partition("Tile costs")[2] for network in NETWORKS)


def test_note_names_the_networks_that_were_fitted_and_those_held_out():
    assert note_on_fit(NETWORKS).endswith("no network here is held out.")
    assert note_on_fit(HELD_OUT).endswith("none of these networks; all are held out.")
    mixed = note_on_fit(["resnet50", "resnet18"])
    assert "(resnet50)" in mixed
    assert mixed.endswith("held out: resnet18.")
