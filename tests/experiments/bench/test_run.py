"""Whether measurements repeat is counted as the page says, and the program runs."""

import sys

import pytest

from experiments.bench import run
from experiments.records import read_record


def measurement(median, low, high, steady=True):
    summary = {"median_ms": median, "repeat_low_ms": low, "repeat_high_ms": high}
    conditions = {"load_before": 0.1, "busy": 0.5, "stolen": None}
    contenders = [{"name": "a", "summary": summary, "steady": steady}]
    return {"contenders": contenders, "conditions": conditions, "seconds": 1.0, "warmup": [10], "warnings": []}


def test_later_medians_within_the_firsts_interval_are_counted():
    (row,) = run.rows([measurement(10, 9, 11), measurement(10.5, 10.4, 10.6), measurement(12, None, None, steady=False)])
    assert (row["later ones"], row["within the first's"], row["never steady"]) == (2, 1, 1)
    # of six pairs the first holds the second, and no other holds another
    assert row["of all pairs"] == pytest.approx(1 / 6, abs=1e-3)
    assert (row["least"], row["largest"]) == (10, 12)


@pytest.mark.slow
@pytest.mark.torch
def test_program_writes_a_record_of_every_contender(tmp_path, tiny_bundle, monkeypatch):
    out = tmp_path / "bench" / "results" / "repeated.json"
    words = ["--bundle", str(tiny_bundle), "--repetitions", "2", "--rounds", "3", "--starts", "2", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["run", *words])
    assert run.main() == 0
    record = read_record(out)
    assert {row["later ones"] for row in record.tables["repeated"]} == {2}
    assert len(record.tables["measurements"]) == 3
    assert str(tmp_path) not in out.read_text()
