"""Time on rows that are computed twice, beside counting them one by one."""

from functools import cache
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.predictor import LatencyPredictor
from stretch.planning.cost.branch import Costs
from stretch.planning.cost.halo import TimedBand, halo_ms
from stretch.planning.cost.makespan import timeline
from stretch.planning.design.bands import band_graph, needed_rows
from stretch.planning.design.branch_design import BranchDesign, BranchScale, SegmentDesign
from stretch.planning.network.segments import cut_segment
from tests.predictors.networks import Net
from tests.predictors.specified import specified
from tests.stretch.designs import whole

PREDICTOR = LatencyPredictor(specified("mi9"))


@cache
def chain(kernels, skip=False):
    """Convolutions of some sizes, one after the other, maybe with a skip over the last."""
    net = Net(1, 8, 32, 16)
    arrives = [net.conv(8, kernel) for kernel in kernels]
    if skip:
        net.add("add", arrives[-1], arrives[-2])
    return net.graph("chain")


def bands_of(graph, bounds, processors=("cpu", "gpu", "dsp"), contention=1.0):
    graphs = [band_graph(graph, "band", start, stop) for start, stop in pairwise(bounds)]
    return [TimedBand(g, PREDICTOR.predict(g, p), contention) for g, p in zip(graphs, processors, strict=False)]


@given(
    st.lists(st.sampled_from([1, 3, 5]), min_size=2, max_size=5),
    st.booleans(),
    st.lists(st.integers(1, 31), min_size=1, max_size=2, unique=True),
)
def test_time_is_that_of_rows_which_several_bands_need(kernels, skip, places):
    """The rows of every operator, marked one by one: those beyond their union are computed twice."""
    graph, bounds = chain(tuple(kernels), skip), [0, *sorted(places), 32]
    bands = bands_of(graph, bounds)
    needs = [needed_rows(graph, start, stop) for start, stop in pairwise(bounds)]
    expected = 0.0
    for band in bands:
        for each in band.estimate.kernels:
            main = next((name for name in each.kernel.ops if name in graph.by_name), None)
            if main is None:
                continue
            marked = [set(range(need[main].start, need[main].stop)) for need in needs]
            count, union = sum(map(len, marked)), len(set.union(*marked))
            expected += each.time.ms * (count - union) / count
    assert halo_ms(graph, bands) == pytest.approx(expected)


def test_timeline_sums_it_over_segments_and_only_bands_have_one():
    net = Net(1, 3, 32, 32)
    first = net.conv(16, 3)
    net.conv(16, 3)
    last = net.conv(16, 3)
    net.head(5)
    graph = net.graph("net")
    stem, inner, head = (
        cut_segment(graph, name, a, b) for name, a, b in (("stem", "input", first), ("s1", first, last), ("head", last, graph.output))
    )
    branches = tuple(BranchScale(p, inner.depth, inner.width, rows=rows) for p, rows in (("cpu", (0, 20)), ("gpu", (20, 32))))
    design = BranchDesign("net", "mi9", (whole(stem), SegmentDesign("s1", first, last, branches, "rows"), whole(head)))
    run = timeline(graph, design, Costs(PREDICTOR, {"cpu": "int8", "gpu": "fp16"}))
    assert [row.halo_ms > 0 for row in run.segments] == [False, True, False]
    assert run.halo_ms == run.segments[1].halo_ms
    assert run.halo_ms < sum(branch.ms + branch.contention_ms for branch in run.segments[1].branches)
