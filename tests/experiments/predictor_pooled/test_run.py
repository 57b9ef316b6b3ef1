"""Pooled fits on families left out: the record's numbers are those of its own rows."""

import numpy as np
import pytest

from experiments.predictor_pooled.run import GOALS, HERE, pool_of, score
from experiments.records import read_record


@pytest.mark.slow
def test_goals_in_the_record_are_what_the_shipped_measurements_give():
    record = read_record(HERE / "results" / "families_left_out.json")
    pool = pool_of("npu")
    rows = {row["what"]: row for row in record.tables["goals"]}
    for title in ("NPUs, w8a8", "NPUs, float"):
        _, chosen = GOALS[title]
        found = score(pool, [place for place in pool.ratios if chosen(place)])
        assert {key: value for key, value in rows[title].items() if key != "what"} == pytest.approx(found, abs=1)


def test_every_place_of_the_record_is_counted_in_its_networks():
    record = read_record(HERE / "results" / "families_left_out.json")
    for name in ("npu", "boards", "transformers"):
        assert sum(row["times"] for row in record.tables[name]) == sum(row["times"] for row in record.tables[f"{name}_networks"])
        for row in record.tables[f"{name}_networks"]:
            least, median, most = (row[f"predicted ÷ measured, {key}"] for key in ("least", "median", "most"))
            assert 0 < least <= median <= most < np.inf
