"""What is measured of exact designs is summed up as it was measured."""

import statistics

import pytest

pytest.importorskip("torch")

from experiments.lossless.measured import BRANCHES, NETWORKS, SINGLES, TWO_THREADS, Measured, contestants_of, row_of, winner
from experiments.lossless.run import main
from experiments.records import read_record
from stretch.planning.config import PlanConfig
from stretch.planning.plan import plan
from tests.contracts.repository import ROOT
from tests.predictors.networks import small_resnet
from tests.predictors.specified import specified

RECORD = ROOT / "experiments" / "lossless" / "results" / "measured.json"


@pytest.fixture(scope="module")
def planned():
    return plan(small_resnet(64), specified("host"), PlanConfig(lossless=True))


def measured(branches, ort, opencl, two, rounds=16):
    """Rounds in which nothing varies but by a hundredth."""
    times = {
        name: [ms * (1 + i % 2 / 100) for i in range(rounds)]
        for name, ms in zip((BRANCHES, *SINGLES, TWO_THREADS), (branches, ort, opencl, two), strict=True)
    }
    return Measured(times, [0.9] * rounds, 1e-7)


@pytest.mark.slow
def test_best_single_processor_is_the_faster_of_the_two(planned):
    row = row_of("net", planned, 0.5, measured(10.0, 20.0, 15.0, 12.0))
    assert row["best single"] == SINGLES[1]
    assert row["speed-up"] == pytest.approx(1.5, rel=0.02)
    assert row["speed-up from"] <= row["speed-up"] <= row["speed-up to"]
    assert row["ratio to measured"] == pytest.approx(planned.run.makespan_ms / row["measured ms"], rel=0.01)


@pytest.mark.parametrize(("two", "faster"), [(15.0, BRANCHES), (7.0, TWO_THREADS), (10.0, "even")])
def test_faster_on_two_cores_is_who_the_interval_says(planned, two, faster):
    assert row_of("net", planned, 0.5, measured(10.0, 20.0, 20.0, two))["faster"] == faster
    assert winner(0) == "even"


def test_every_contestant_has_its_median():
    times = measured(10.0, 20.0, 15.0, 12.0).times
    rows = contestants_of("net", times)
    assert [row["median ms"] for row in rows] == [round(statistics.median(values), 2) for values in times.values()]


@pytest.mark.slow
@pytest.mark.opencl
def test_network_is_measured_on_this_machine_and_recorded(tmp_path):
    out = tmp_path / "lossless" / "results" / "measured.json"
    profile = ROOT / "predictors" / "profiles" / "host.toml"
    words = ["measured", str(profile), "--networks", "squeezenet1_1", "--rounds", "2", "--work", str(tmp_path / "work"), "--out", str(out)]
    assert main(words) == 0
    record = read_record(out)
    (row,) = record.tables["networks"]
    assert (record.source, record.runs, record.interleaved) == ("measured", 2, True)
    assert row["divided segments"] >= 1
    assert row["max error"] < 1e-5
    assert 0 < row["efficiency"] <= 1
    assert {r["network and contestant"].partition(", ")[2] for r in record.tables["contestants"]} == {BRANCHES, *SINGLES, TWO_THREADS}


def test_recorded_figures_are_those_of_the_contestants():
    record = read_record(RECORD)
    medians = {row["network and contestant"]: row["median ms"] for row in record.tables["contestants"]}
    assert [row["network"] for row in record.tables["networks"]] == list(NETWORKS)
    for row in record.tables["networks"]:
        name = row["network"]
        assert row["measured ms"] == medians[f"{name}, {BRANCHES}"]
        assert row["best single ms"] == min(medians[f"{name}, {each}"] for each in SINGLES)
        assert row["speed of branches over two threads"] == pytest.approx(medians[f"{name}, {TWO_THREADS}"] / row["measured ms"], rel=0.01)
