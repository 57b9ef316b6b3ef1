"""What a supernet costs is computed from records, with and without the original's own training."""

import pytest

from experiments.records import read_record
from experiments.supernet.run import cost_rows
from tests.contracts.repository import ROOT

RECORD = ROOT / "experiments" / "supernet" / "results" / "h200.json"
WITH = ", and the original's training"


def test_costs_are_shown_without_and_with_the_original():
    rows = {row["training"]: row for row in cost_rows(2.0, {"kind": 3.0}, 5.0)}
    without = next(name for name in rows if name.endswith("kind"))
    assert (rows[without]["GPU minutes"], rows[without]["over one"]) == (3.0, 1.5)
    assert (rows[without + WITH]["GPU minutes"], rows[without + WITH]["over one"]) == (8.0, 4.0)
    assert rows["the original, 100 epochs"]["over one"] == 2.5


def test_recorded_costs_add_up():
    rows = {row["training"]: row for row in read_record(RECORD).tables["cost"]}
    parent = rows["the original, 100 epochs"]
    pairs = [name for name in rows if name.endswith(WITH)]
    assert len(pairs) == 2
    for name in pairs:
        alone = rows[name.removesuffix(WITH)]
        assert rows[name]["GPU minutes"] == pytest.approx(alone["GPU minutes"] + parent["GPU minutes"], abs=0.011)
        assert rows[name]["over one"] == pytest.approx(alone["over one"] + parent["over one"], abs=0.021)
