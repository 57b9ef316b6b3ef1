"""Neighbours that one processor runs are one segment."""

import pytest

from stretch.planning.cost.makespan import timeline
from stretch.planning.design.branch_design import BranchScale, SegmentDesign
from stretch.planning.network.parts import clean_cuts, divide
from stretch.planning.network.segments import split_segments
from stretch.planning.search.seams import without_seams
from tests.predictors.networks import small_resnet
from tests.stretch.planning.spaces import as_design, make_space

GRAPH = small_resnet()
COSTS = make_space(GRAPH).costs
STAGES = split_segments(GRAPH)
CLEAN = clean_cuts(GRAPH, [COSTS.predictor.kernels(GRAPH, p) for p in ("cpu", "gpu")])
PARTS = [part for stage in STAGES for part in divide(GRAPH, stage, CLEAN)]


def on(processors):
    return [
        SegmentDesign(part.name, part.start, part.end, (BranchScale(p, part.depth, part.width, align=8),))
        for part, p in zip(PARTS, processors, strict=True)
    ]


def test_parts_of_a_stage_on_one_processor_are_the_stage_again():
    joined = without_seams(GRAPH, STAGES, on(["gpu"] * len(PARTS)))
    assert [(each.name, each.start, each.end) for each in joined] == [(stage.name, stage.start, stage.end) for stage in STAGES]
    assert [each.branches[0].depth for each in joined] == [stage.depth for stage in STAGES]


@pytest.mark.parametrize("where", range(1, len(PARTS)))
def test_processors_change_where_they_did_and_the_time_is_the_same(where):
    parts = on(["cpu"] * where + ["gpu"] * (len(PARTS) - where))
    joined = without_seams(GRAPH, STAGES, parts)
    assert len(joined) <= len(STAGES) + 1
    assert len({each.name for each in joined}) == len(joined)
    changed = next(each.start for each in joined if each.branches[0].processor == "gpu")
    assert changed == PARTS[where].start
    before, after = (timeline(GRAPH, as_design(GRAPH, some), COSTS) for some in (parts, joined))
    assert after.makespan_ms == pytest.approx(before.makespan_ms)


def test_bands_keep_their_seams():
    parts = on(["cpu"] * len(PARTS))
    s1 = next(i for i, part in enumerate(PARTS) if part.name == "s1_2")
    branches = (BranchScale("cpu", 1, 128, align=8, rows=(0, 16)), BranchScale("gpu", 1, 128, align=4, rows=(16, 32)))
    parts[s1] = SegmentDesign("s1_2", PARTS[s1].start, PARTS[s1].end, branches, "rows")
    names = [each.name for each in without_seams(GRAPH, STAGES, parts)]
    assert names == ["stem", "s1_1", "s1_2", "s1_3", "s2", "head"]
