"""Energies are compared with those of the CPU alone, network by network."""

import pytest

pytest.importorskip("torch")

from experiments.lossless.run import MODELS
from experiments.paper.fig10_energy.run import ALONE, HERE, TOGETHER, compared
from experiments.records import read_record


def rows(energy):
    """Every network takes 10 ms, and so many mJ on these processors."""
    return [
        {
            "network and processors": f"{words}, {name}",
            "ms": 10.0,
            "mJ": energy(at, name),
            "W": None if energy(at, name) is None else energy(at, name) / 10,
        }
        for at, words in enumerate(MODELS.values())
        for name in (*ALONE, *TOGETHER)
    ]


def test_mean_and_ends_are_over_networks_that_have_a_design():
    table = {
        row["processors"]: row
        for row in compared(rows(lambda at, name: None if (at, name) == (0, "cpu,gpu") else 50.0 + at if name != "cpu" else 100.0))
    }
    assert table["cpu"] | {"processors": ""} == {"processors": "", "networks": 6} | dict.fromkeys(list(table["cpu"])[2:], 0.0)
    assert table["gpu"]["energy %"] == -47.5
    assert (table["gpu"]["energy %, least"], table["gpu"]["energy %, largest"]) == (-50.0, -45.0)
    assert table["cpu,gpu"]["networks"] == 5
    assert table["cpu,gpu"]["energy %"] == -47.0


def test_summary_of_the_record_is_that_of_its_networks():
    record = read_record(HERE / "results" / "energy.json")
    assert compared(record.tables["networks"]) == record.tables["compared"]


def test_power_is_energy_over_time():
    for row in read_record(HERE / "results" / "energy.json").tables["networks"]:
        if row["mJ"] is not None:
            assert row["W"] == pytest.approx(row["mJ"] / row["ms"], abs=0.02)
