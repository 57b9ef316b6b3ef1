from dataclasses import replace
from functools import cache
from itertools import combinations, product

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretch.planning.blocks import MAX_SETS, OTHER_LOSS, block_sets, keep_blocks, kept_worth, shorten
from stretch.planning.config import PlanConfig
from stretch.planning.cost.makespan import timeline
from stretch.planning.design.branch_design import BranchDraft, DesignDraft, SegmentDraft
from stretch.planning.design.scale import dropped_blocks, resolve_design
from stretch.planning.network.segments import cut_segment, split_segments
from stretch.planning.pareto import diverse_front, front
from stretch.planning.plan import evaluate, plan
from stretch.planning.result import Kept
from tests.effort import examples
from tests.predictors.networks import small_resnet
from tests.predictors.specified import specified

LOOSE = {"alpha": 10.0, "beta": 10.0, "balance": 0.01, "min_depth": 0.2, "segment_macs": 0.3}
#: Device, processors and options: merged stages; separate stages; more than two branches; only branches of the full width.
PLANS = {
    "merged": ("pixel6", ("cpu", "gpu"), {"merge": "always", "macs": (0.6, 1.4)}),
    "stages": ("pixel6", ("cpu", "gpu"), {"merge": "never", "n_meet": 2, "macs": (0.9, 1.1)}),
    "three": ("mi9", ("cpu", "gpu", "dsp"), {"merge": "always", "macs": (0.9, 1.2)}),
    "wide": ("pixel6", ("cpu", "gpu"), {"merge": "always", "macs": (0.6, 1.4), "min_width": 1.0}),
}
numbers = st.floats(0, 2) | st.just(float("inf"))


@cache
def planned(kind, blocks=(5, 5), **changes):
    device, processors, options = PLANS[kind]
    return plan(small_resnet(64, blocks), specified(device), PlanConfig(processors=processors, **(LOOSE | options | changes)))


def budgeted(result, factor):
    """The plan with a latency budget of `factor` times its time."""
    return replace(result, config=msgspec.structs.replace(result.config, latency_budget=result.run.makespan_ms * factor))


def units(segment):
    return [number for number, block in enumerate(segment.blocks) if block.removable]


def dropped_of(segment, branch):
    return branch.dropped or tuple(sorted(dropped_blocks(segment, branch.depth)))


@pytest.mark.representatives(2)
@pytest.mark.parametrize("kind", PLANS)
@settings(max_examples=examples(12))
@given(data=st.data(), factor=st.sampled_from([0.5, 1.0, 1.05, 1.3]))
def test_blocks_are_chosen_within_the_latency_and_macs_bounds_and_nothing_else_changes(kind, data, factor):
    before = budgeted(planned(kind), factor)
    design, warnings = keep_blocks(before, lambda _, segment: {n: data.draw(numbers) for n in units(segment)})
    after = evaluate(before.graph, before.device, design, before.config)
    assert after.run.makespan_ms <= before.run.makespan_ms * max(1.0, factor) * (1 + 1e-9)
    assert before.config.macs[0] <= after.macs_ratio <= before.config.macs[1]
    assert bool(warnings) == (design != before.design)
    for row, part, old in zip(after.run.segments, after.design.segments, before.design.segments, strict=True):
        assert (part.start, part.end, part.join) == (old.start, old.end, old.join)
        assert [b.processor for b in part.branches] == [b.processor for b in old.branches]
        assert sum(b.partition for b in part.branches) == sum(b.partition for b in old.branches)
        for branch in part.branches:
            assert branch.depth == row.segment.depth - len(dropped_of(row.segment, branch)) >= before.config.min_depth * row.segment.depth
            assert set(dropped_of(row.segment, branch)) <= set(units(row.segment))


@cache
def every_pair():
    """Predicted runs of a small plan with two full-width branches, by the pair of block sets that the branches drop."""
    result, runs = planned("wide", blocks=(3, 2)), {}
    (part,) = (part for part in result.design.segments if not part.whole)
    whole = [SegmentDraft([BranchDraft(p.branches[0].processor)], p.name, p.start, p.end) for p in result.design.segments if p.whole]
    subsets = [dropped_set for count in range(4) for dropped_set in combinations(units(result.run.segments[1].segment), count)]
    for pair in product(subsets, subsets):
        branches = [BranchDraft(b.processor, dropped=dropped_set) for b, dropped_set in zip(part.branches, pair, strict=True)]
        parts = [whole[0], SegmentDraft(branches, part.name, part.start, part.end), *whole[1:]]
        align = {b.processor: b.align for b in part.branches}
        runs[pair] = timeline(result.graph, resolve_design(DesignDraft(parts), result.graph, "pixel6", align, "cpu"), result.costs)
    return runs


@settings(max_examples=examples(60))
@given(st.lists(st.sampled_from([0.0, 0.01, 0.1, 1.0]), min_size=5, max_size=5), st.floats(1.0, 1.5), st.floats(0.0, 0.5))
def test_one_branch_keeps_the_most_important_blocks_within_the_latency_and_macs_bounds(losses, time, work):
    before = planned("wide", blocks=(3, 2))
    config = msgspec.structs.replace(before.config, latency_budget=before.run.makespan_ms * time, macs=(0.6, before.macs_ratio + work))
    segment, (low, high) = before.run.segments[1].segment, config.macs
    loss = {number: losses[number] for number in units(segment)}
    design, _ = keep_blocks(replace(before, config=config), lambda _, segment: loss)

    def worth(pair):
        kept = [set(loss) - set(dropped_set) for dropped_set in pair]
        return max(sum(loss[n] for n in a) + OTHER_LOSS * sum(loss[n] for n in b - a) for a, b in (kept, kept[::-1]))

    feasible = [
        pair
        for pair, run in every_pair().items()
        if run.makespan_ms <= config.latency_budget
        and low <= run.macs / before.graph.macs <= high
        and sum(b.macs for b in run.segments[1].branches) >= config.segment_macs * segment.graph.macs
    ]
    got = worth([dropped_of(segment, branch) for branch in design.segments[1].branches])
    assert got == pytest.approx(max(map(worth, feasible)), abs=1e-4)


@pytest.mark.parametrize(
    "changes",
    [{"objective": "energy"}, {"objective": "0.5*latency+0.5*energy"}, {"kinds": ("rows",)}, {"params": (0.3, 1.5)}, {"min_depth": 1.0}],
)
def test_plan_of_another_objective_or_without_shallow_branches_is_unchanged(changes):
    before = planned("merged", **changes) if "kinds" in changes or "min_depth" in changes else planned("merged")
    before = replace(before, config=msgspec.structs.replace(before.config, **changes))
    assert keep_blocks(before, lambda _, segment: {n: float(n) for n in units(segment)}) == (before.design, [])


FOUR = small_resnet(64, (6, 5, 6, 5), (8, 8, 16, 16))
MERGED = cut_segment(FOUR, "all", split_segments(FOUR)[0].end, split_segments(FOUR)[-2].end)


@given(st.lists(numbers | st.sampled_from([0.0, 1.0]), min_size=18, max_size=18), st.integers(1, 18))
def test_sets_of_blocks_are_few_and_have_the_least_important_of_each_run(losses, count):
    loss = dict(zip(units(MERGED)[:count], losses, strict=False))
    sets = block_sets(MERGED, loss)
    assert len(set(sets)) == len(sets) <= MAX_SETS
    assert () in sets
    assert tuple(loss) in sets
    for dropped in sets:
        assert list(dropped) == sorted(set(dropped) & loss.keys())
        for run in range(4):
            in_run = {number for number in loss if MERGED.blocks[number].run == run}
            kept_in_run, dropped_in_run = in_run - set(dropped), in_run & set(dropped)
            assert not kept_in_run or not dropped_in_run or max(loss[n] for n in dropped_in_run) <= min(loss[n] for n in kept_in_run)


@pytest.mark.parametrize("kind", ["merged", "stages"])
@settings(max_examples=examples(20))
@given(losses=st.lists(st.floats(0.01, 2), min_size=8, max_size=8) | st.none(), factor=st.sampled_from([0.5, 1.02]))
def test_network_with_fewer_blocks_is_as_fast_on_one_processor_and_loses_the_least(kind, losses, factor):
    before, lost = budgeted(planned(kind), factor), {}
    limit = before.run.makespan_ms * max(1.0, factor) * (1 + 1e-9)

    def known_losses(_, segment):
        lost[segment.name] = dict(zip(units(segment), losses, strict=False))
        return lost[segment.name]

    def ms(design):
        costs = before.costs.replace_precision(before.best_single.processor, before.best_single.precision)
        return timeline(before.graph, design, costs).makespan_ms

    shortened = shorten(before, losses and known_losses)
    assert shortened.ms == pytest.approx(ms(shortened.design))
    assert shortened.ms <= limit
    assert {b.processor for part in shortened.design.segments for b in part.branches} == {before.best_single.processor}
    assert all(part.whole and part.join == "none" for part in shortened.design.segments)
    assert (shortened.kept is None) == (losses is None)
    if losses:
        # with one more block the network would exceed the limit
        for number, part in enumerate(shortened.design.segments):
            (branch,) = part.branches
            for block in branch.dropped:
                dropped_without = tuple(n for n in branch.dropped if n != block)
                deeper = replace(part, branches=(replace(branch, depth=branch.depth + 1, dropped=dropped_without),))
                parts = [deeper if i == number else other for i, other in enumerate(shortened.design.segments)]
                assert ms(replace(shortened.design, segments=tuple(parts))) > limit
        assert shortened.kept.shortened == kept_worth(before, shortened.design, known_losses)


def test_plan_without_stretched_segments_or_slower_than_the_original_has_no_shortened_network():
    for options in ({"kinds": ("rows",)}, {"latency_budget": 1e3}):
        result = planned("merged", **options)
        assert result.shortened is None
        assert not [control for control in result.recommendation.compared if control.name.startswith("shortened")]


def test_shortened_network_is_recommended_only_if_it_keeps_as_much_accuracy():
    result = planned("merged")
    assert (result.shortened.kept, result.recommended) == (None, result.fastest)
    for branched, shortened in ((0.9, 0.8), (0.8, 0.8), (0.8, 0.9)):
        kept = Kept(basis="measured", branched=branched, shortened=shortened, images=10)
        changed = replace(result, shortened=msgspec.structs.replace(result.shortened, kept=kept))
        instead = shortened >= branched and result.fastest in ("branched", "no clear winner")
        assert changed.recommended == (f"shortened:{result.shortened.processor}" if instead else result.fastest)


def test_plan_with_losses_of_blocks_uses_its_latency_budget_and_names_the_dropped_blocks():
    before = budgeted(planned("merged"), 1.2)
    losses = {n: 0.5**n for n in range(1, 20)}
    result = plan(before.graph, before.device, before.config, losses=lambda _, segment: {n: losses[n] for n in units(segment)})
    design, warnings = keep_blocks(before, lambda _, segment: {n: losses[n] for n in units(segment)})
    assert result.design == design != before.design
    assert result.warnings[: len(warnings)] == tuple(warnings)
    assert before.run.makespan_ms < result.run.makespan_ms <= before.config.latency_budget
    assert (before.optimal, result.optimal, result.gap) == (True, False, None)


@pytest.mark.parametrize(
    "search",
    [
        lambda *request, **losses: front(*request, ("latency", "macs"), 3, **losses),
        lambda *request, **losses: diverse_front(*request, 3, 1.5, **losses),
    ],
)
def test_fronts_and_alternatives_keep_important_blocks_like_a_plan(search):
    before, lost = planned("merged"), {}

    def losses(_, segment):
        # the blocks that an even choice drops first matter most
        return lost.setdefault(segment.name, {n: 1 - 0.5**n for n in units(segment)})

    request = before.graph, before.device, before.config
    evenly, chosen = (search(*request, **options).designs for options in ({}, {"losses": losses}))
    assert lost
    keeps = [
        [kept_worth(evaluate(*request[:2], one.design, before.config), one.design, losses) for one in rows] for rows in (evenly, chosen)
    ]
    assert all(old <= new for old, new in zip(*keeps, strict=True))
    assert sum(keeps[1]) > sum(keeps[0])
