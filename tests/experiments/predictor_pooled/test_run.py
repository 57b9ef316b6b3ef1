"""Pooled fits on families left out: the record's numbers are those of its own rows."""

import numpy as np

from experiments.predictor_pooled.run import HERE
from experiments.records import read_record


def test_every_place_of_the_record_is_counted_in_its_networks():
    record = read_record(HERE / "results" / "families_left_out.json")
    for name in ("npu", "boards", "transformers"):
        assert sum(row["times"] for row in record.tables[name]) == sum(row["times"] for row in record.tables[f"{name}_networks"])
        for row in record.tables[f"{name}_networks"]:
            least, median, most = (row[f"predicted ÷ measured, {key}"] for key in ("least", "median", "most"))
            assert 0 < least <= median <= most < np.inf
