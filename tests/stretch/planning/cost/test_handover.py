"""A band is handed the rows that it reads."""

import pytest

from predictors.predictor import LatencyPredictor
from stretch.planning.cost.handover import cuts_itself, handed
from stretch.planning.design.bands import ENTRY_ROWS, band_graph, needed_rows
from stretch.planning.network.segments import split_segments
from tests.predictors.networks import small_resnet
from tests.predictors.specified import specified

SEGMENT = next(segment for segment in split_segments(small_resnet()) if segment.branchable)


@pytest.mark.parametrize(("start", "stop"), [(0, 8), (8, 24), (24, 32)])
def test_branch_that_is_handed_its_rows_has_no_cut_and_computes_the_same(start, stop):
    band = band_graph(SEGMENT.graph, "band", start, stop)
    given = handed(band)
    rows = needed_rows(SEGMENT.graph, start, stop)[SEGMENT.start]
    assert given.input.shape[2] == len(rows) < SEGMENT.graph.input.shape[2]
    assert ENTRY_ROWS not in given.by_name
    assert (given.macs, given.params) == (band.macs, band.params)
    assert given.by_name[given.output].shape == band.by_name[band.output].shape
    assert len(given.ops) == len(band.ops) - 1


@pytest.mark.parametrize(
    ("holder", "processor", "copies"),
    [
        ("cpu", "cpu", False),
        ("cpu[1large]", "cpu", False),
        ("gpu", "gpu", True),
        ("dsp", "dsp", False),
        ("cpu", "gpu", False),
        ("gpu", "cpu", False),
    ],
)
def test_rows_are_copied_only_where_nothing_crosses_and_they_are_not_together(holder, processor, copies):
    assert cuts_itself(holder, processor, LatencyPredictor(specified("mi9"))) is copies
