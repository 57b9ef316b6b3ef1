"""Bands, channels and paths in the search: every option takes its time on the timeline, and brute force finds nothing better."""

from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import InfeasibleError
from predictors.predictor import LatencyPredictor
from stretch.planning.config import PlanConfig
from stretch.planning.cost.branch import Costs
from stretch.planning.cost.compare import ideal_split_ms
from stretch.planning.cost.makespan import timeline
from stretch.planning.design.branch_design import BranchDesign, BranchScale, SegmentDesign
from stretch.planning.divisions.paths import path_candidates
from stretch.planning.divisions.rows import MAX_HALO, BandCandidates
from stretch.planning.network.segments import clean_cuts, cut_segment, divide, split_segments
from stretch.planning.result import operator_split
from stretch.planning.search.exact import search_exact
from stretch.planning.search.parts import (
    PartSpace,
    band_ranges,
    coarse_splits,
    is_distinct_order,
    merge_neighbours,
    refined_splits,
    with_exact_kinds,
    without_stretched,
)
from stretch.planning.search.space import DesignSpace, Rules, Totals
from tests.predictors.networks import Net, resnet50, small_resnet
from tests.predictors.specified import specified
from tests.stretch.planning.design.test_paths import conv, joined
from tests.stretch.planning.spaces import as_design, make_space

TINY = small_resnet(96, blocks=(1, 1), mids=(64, 64))
GRAPH = small_resnet(64, blocks=(2, 2), mids=(32, 64))


def exact_space(graph, *kinds, processors=("cpu", "gpu"), **changes):
    space = make_space(graph, processors=processors, **changes)
    return with_exact_kinds(graph, PlanConfig(kinds=kinds), without_stretched(space))


@pytest.mark.representatives(1)
@pytest.mark.parametrize("processors", [("cpu", "gpu"), ("cpu", "gpu", "dsp")])
def test_every_banded_option_takes_its_time_on_the_timeline(processors):
    """Each option of a run takes the same time on the timeline of a design whose other parts are whole."""
    space = exact_space(TINY, "rows", processors=processors)
    host = space.holders.index(space.costs.host)
    wholes = [options[0] for options in space.options]
    count = 0
    for at, options in enumerate(space.options):
        for segment_options in (o for o in options if o.division == "rows"):
            for index in range(0, len(segment_options.macs), 5):
                parts = [o.design(0, space.costs) for o in wholes[:at]]
                parts += [
                    segment_options.design(index, space.costs),
                    *(o.design(0, space.costs) for o in wholes[at + segment_options.span :]),
                ]
                row = timeline(TINY, as_design(TINY, parts), space.costs).segments[at]
                assert row.ms == pytest.approx(segment_options.ms[host, index])
                assert row.communication_ms <= segment_options.exchange_ms[host, index] + 1e-9
                assert 0 <= row.halo_macs <= 2 * len(row.branches) * MAX_HALO * row.segment.graph.macs
                count += 1
    assert count >= 9


def test_band_on_the_processor_that_holds_its_input_copies_rows_that_are_not_contiguous():
    space = exact_space(GRAPH, "rows")
    gpu = space.holders.index("gpu")
    at, segment_options = next((i, o) for i, options in enumerate(space.options) for o in options if o.division == "rows" and i > 0)
    parts = [next(o for o in options if o.processors == ("gpu",)).design(0, space.costs) for options in space.options]
    parts[at : at + segment_options.span] = [segment_options.design(0, space.costs)]
    assert timeline(GRAPH, as_design(GRAPH, parts), space.costs).segments[at].ms == pytest.approx(segment_options.ms[gpu, 0])
    assert segment_options.candidates[1][0].cut.ms > 0


@pytest.mark.parametrize(("divided", "merged"), [(False, False), (False, True), (True, False)])
def test_bands_meet_only_at_permitted_ends(divided, merged):
    space = make_space(GRAPH)
    parts = PartSpace(GRAPH, space, divided=divided, merged=merged)
    ends = {stage.end for stage in space.segments}
    runs = [parts.parts[a : b + 1] for a, b in BandCandidates(parts).runs]
    assert divided or all(part.end in ends for run in runs for part in run)
    assert merged or all(sum(part.end in ends for part in run) <= 1 for run in runs)


def test_network_with_nothing_to_split_is_refused_with_the_operator_that_mixes_rows():
    net = Net(1, 3, 16, 16)
    net.add("global_avg_pool", keepdims=False)
    net.add("linear", out_features=10, bias=True)
    graph = net.graph("pooled")
    with pytest.raises(
        InfeasibleError, match="`pooled` has no segment whose division by rows might pay on these processors: `global_avg_pool_1`"
    ):
        with_exact_kinds(graph, PlanConfig(kinds=("rows",)), make_space(graph))


def small_network():
    """A network with an inverted residual, two paths, and linear layers."""
    net = Net(1, 16, 8, 8)
    net.conv(512, act="relu6")
    net.conv(512, 3, groups=512, act="relu6")
    net.add("add", "input", net.conv(16, act=None))
    start = net.last
    net.add("concat", net.conv(128, 3, source=start), net.conv(128, 3, source=start))
    net.add("flatten")
    net.add("linear", out_features=256, bias=True)
    net.add("relu")
    net.add("linear", out_features=10, bias=True)
    return net.graph("small")


def test_relu_after_a_sum_of_branches_runs_on_the_host():
    """A residual block ends with a ReLU, which needs the whole sum."""
    net = Net(1, 64, 14, 14)
    for _ in range(2):
        start = net.last
        net.conv(512, 3)
        net.add("add", start, net.conv(64, 3, act=None))
        net.add("relu")
    net.head(10)
    graph = net.graph("basic")
    space = exact_space(graph, "channels", precision={"cpu": "fp32"})
    sums = [o for options in space.options for o in options if o.division == "channels" and o.join == "partial_sums" and o.tail]
    assert sums
    for segment_options in sums:
        assert graph.by_name[segment_options.segment.end].kind == "add"
        assert [op.kind for op in segment_options.tail.graph.ops] == ["input", "relu"]
    search_result = search_exact(space, Totals(graph.macs, graph.macs, 1))
    segments = search_result.segments(space.costs)
    assert len(segments) > len(search_result.picks)
    run = timeline(graph, as_design(graph, segments), space.costs)
    assert (run.makespan_ms, run.macs - run.repeated_macs) == (pytest.approx(search_result.ms), graph.macs)
    without_host = exact_space(graph, "graph", "rows", "channels", processors=("gpu", "dsp"))
    assert not any(segment_options.tail for options in without_host.options for segment_options in options)


@given(st.fixed_dictionaries({name: st.sampled_from(["fp32", "fp16", "int8"]) for name in ("cpu", "gpu")}), st.booleans())
def test_no_exact_plan_has_a_partial_sum_on_a_processor_in_int8(precision, with_dsp):
    """Export would leave the partial sum in fp32; the DSP of the profile runs only int8."""
    processors = ("cpu", "gpu", "dsp") if with_dsp else ("cpu", "gpu")
    supported = {name: at for name, at in precision.items() if at in specified("mi9").processor(name).precisions}
    space = exact_space(small_network(), "rows", "channels", "graph", processors=processors, precision=supported)
    sums = [o.processors for options in space.options for o in options if o.join == "partial_sums"]
    rounded = {name for name in processors if space.costs.precision[name] == "int8"}
    assert not any(rounded & set(names) for names in sums)
    assert bool(sums) == rounded.isdisjoint(("cpu", "gpu"))


def split(graph, device, processors=()):
    profile = specified(device)
    config = PlanConfig(processors=processors).resolve(profile)
    costs = Costs(LatencyPredictor(profile), config.precision)
    return operator_split(graph, split_segments(graph), costs, config.processors), config.processors, costs


@pytest.mark.slow
@pytest.mark.parametrize("device", ["host", "mi9", "pixel6"])
def test_operator_split_time_is_between_the_lower_bound_and_no_split(device):
    graph = resnet50()
    result, processors, costs = split(graph, device)
    assert ideal_split_ms(graph, processors, costs.predictor, costs.precision) < result.makespan_ms
    assert result.makespan_ms <= min(costs.predictor.predict(graph, p, costs.precision[p]).ms for p in processors) + 1e-9


@pytest.mark.parametrize("processors", [("cpu", "gpu"), ("cpu", "gpu", "dsp")])
def test_operator_split_design_is_exact_and_takes_the_stated_time(processors):
    graph = small_resnet(64)
    result, _, costs = split(graph, "mi9", processors)
    run = timeline(graph, result.design, costs)
    assert (run.makespan_ms, run.macs - run.halo_macs) == (pytest.approx(result.makespan_ms), graph.macs)
    assert run.params == graph.params
    assert {part.join for part in result.design.segments} <= {"none", "rows"}


@given(st.integers(2, 120), st.integers(2, 4))
def test_coarse_splits_divide_the_rows_into_consecutive_bands(rows, count):
    for split in coarse_splits(rows, count) if rows >= count else []:
        result = band_ranges(rows, split)
        assert (result[0][0], result[-1][1]) == (0, rows)
        assert all(a < b for a, b in result)
        assert [b for _, b in result[:-1]] == [a for a, _ in result[1:]]


@given(st.integers(18, 120), st.lists(st.tuples(st.floats(0, 2), st.floats(0.05, 1)), min_size=2, max_size=3))
def test_best_split_is_found_if_times_are_linear_in_rows(rows, lines):
    """Each band takes a fixed time plus a time per row."""
    count = len(lines)

    def slowest(split):
        return max(fixed + slope * (b - a) for (fixed, slope), (a, b) in zip(lines, band_ranges(rows, split), strict=True))

    tried = coarse_splits(rows, count)
    times = np.array(
        [[fixed + slope * (b - a) for (a, b) in [band_ranges(rows, split)[i]]] for i, (fixed, slope) in enumerate(lines) for split in tried]
    )
    more = refined_splits(rows, count, tried, [times.reshape(count, len(tried))])
    assert not set(more) & set(tried)
    least = min(b - a for split in tried for a, b in band_ranges(rows, split))
    first, last = min(split[0] for split in tried), max(split[-1] for split in tried)
    every = combinations(range(first, last + 1), count - 1)
    best = min(slowest(split) for split in every if min(b - a for a, b in band_ranges(rows, split)) >= least)
    assert min(map(slowest, [*tried, *more])) <= best + 1e-9


def test_each_of_three_processors_may_have_the_middle_band():
    names = ("cpu", "gpu", "dsp")

    def orders(count, upright):
        return [order for order in permutations(names[:count]) if is_distinct_order(order, names, upright=upright)]

    assert orders(2, True) == [("cpu", "gpu")]
    assert {order[1] for order in orders(3, True)} == {order[0] for order in orders(3, False)} == set(names)
    assert len(orders(3, True)) == 3


SEAMS_GRAPH = small_resnet()
COSTS = make_space(SEAMS_GRAPH).costs
STAGES = split_segments(SEAMS_GRAPH)
CLEAN = clean_cuts(SEAMS_GRAPH, [COSTS.predictor.kernels(SEAMS_GRAPH, p) for p in ("cpu", "gpu")])
PARTS = [part for stage in STAGES for part in divide(SEAMS_GRAPH, stage, CLEAN)]


def parts_on(processors):
    return [
        SegmentDesign(part.name, part.start, part.end, (BranchScale(p, part.depth, part.width, align=8),))
        for part, p in zip(PARTS, processors, strict=True)
    ]


@pytest.mark.parametrize("count", range(1, len(PARTS)))
def test_merged_neighbours_keep_the_change_of_processors_and_the_time(count):
    parts = parts_on(["cpu"] * count + ["gpu"] * (len(PARTS) - count))
    merged = merge_neighbours(SEAMS_GRAPH, STAGES, parts)
    assert len(merged) <= len(STAGES) + 1
    assert len({item.name for item in merged}) == len(merged)
    changed = next(item.start for item in merged if item.branches[0].processor == "gpu")
    assert changed == PARTS[count].start
    before, after = (timeline(SEAMS_GRAPH, as_design(SEAMS_GRAPH, segments), COSTS) for segments in (parts, merged))
    assert after.makespan_ms == pytest.approx(before.makespan_ms)


def test_merged_neighbours_keep_the_ends_of_bands():
    parts = parts_on(["cpu"] * len(PARTS))
    s1 = next(i for i, part in enumerate(PARTS) if part.name == "s1_2")
    branches = (BranchScale("cpu", 1, 128, align=8, rows=(0, 16)), BranchScale("gpu", 1, 128, align=4, rows=(16, 32)))
    parts[s1] = SegmentDesign("s1_2", PARTS[s1].start, PARTS[s1].end, branches, "rows")
    names = [part.name for part in merge_neighbours(SEAMS_GRAPH, STAGES, parts)]
    assert names == ["stem", "s1_1", "s1_2", "s1_3", "s2", "head"]


@pytest.mark.parametrize(("kind", "count"), [("concat", 4), ("add", 3)])
def test_every_division_of_paths_takes_its_time_on_the_timeline(kind, count):
    processors, device = ("cpu", "gpu", "dsp"), specified("mi9")
    ops = [conv(f"p{i}_{j}", f"p{i}_{j - 1}" if j else "x", 16) for i in range(count) for j in range(i + 1)]
    graph = joined([f"p{i}_{i}" for i in range(count)], kind, *ops)
    segment = cut_segment(graph, "s1", "x", "end")
    config = PlanConfig(processors=processors).resolve(device)
    space = DesignSpace.of([segment], processors, Costs(LatencyPredictor(device), config.precision), Rules.of(config))
    candidates = path_candidates(space, segment)
    assert {options.processors for options in candidates} == {order for n in (2, 3) for order in permutations(processors, n)}
    for options in candidates:
        pairs = count - 1 if len(options.processors) == 2 else (count - 1) * (count - 2) // 2
        assert len(options.macs) == pairs
        for index in range(pairs):
            run = timeline(graph, BranchDesign("net", "mi9", (options.design(index, space.costs),)), space.costs)
            # the input is on the host
            assert run.segments[0].ms == pytest.approx(options.ms[space.holders.index(space.costs.host)][index])
            assert (run.macs, run.params) == (graph.macs, graph.params)
            assert options.slowest_ms[index] == pytest.approx(max(b.ms + b.contention_ms for b in run.segments[0].branches))
