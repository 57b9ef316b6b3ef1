"""Whether measurements repeat is counted as the page says, and the program runs."""

import pytest

from experiments.bench import run


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
