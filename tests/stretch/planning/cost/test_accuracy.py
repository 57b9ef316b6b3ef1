"""Losses of a design: the accuracy predictor, its file, and the sensitivity that is fitted to measurements."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import json
from msgspec.structs import replace
from scipy.stats import spearmanr

from predictors.errors import StretchError, UsageError
from stretch.evaluation.sensitivity import fit as fitting
from stretch.evaluation.sensitivity.fit import HELPS
from stretch.evaluation.sensitivity.source import random_designs
from stretch.planning.cost import accuracy
from stretch.planning.cost.accuracy import FEATURES, SEEN_FEATURES, AccuracyPredictor
from stretch.planning.design.branch_design import BranchDesign, BranchScale, SegmentDesign
from stretch.planning.search.exact import search_exact
from stretch.planning.search.space import Totals
from tests.stretch.designs import whole
from tests.stretch.planning.cost.measured import GRAPH as MEASURED_GRAPH
from tests.stretch.planning.cost.measured import ON, agreement, alone, made, merged_space
from tests.stretch.planning.spaces import make_space, small_resnet

GRAPH = small_resnet()


def predictor(graph=GRAPH, **changes):
    rng = np.random.default_rng(0)
    weights = {f"s{n}": tuple(float(w) for w in rng.normal(size=len(FEATURES)) * 0.05) for n in range(1, 6)}
    facts = {"base": 0.9, "weights": weights, "designs": 40, "rank_correlation": 0.7, "p_value": 0.01, "rmse": 0.002}
    return AccuracyPredictor(model=graph.name, **facts | changes)


def branched_option(graph=None, **changes):
    return next(o for group in make_space(graph or MEASURED_GRAPH, **changes).options for o in group if o.branched)


@pytest.mark.parametrize(
    ("losses", "message"),
    [
        (lambda: predictor(weights={"s9": (0.0,) * len(FEATURES)}).losses(branched_option(GRAPH)), "does not know the segment"),
        (lambda: sensitivity_of().losses(branched_option(join="sum")), "says nothing of `sum`"),
        (lambda: replace(sensitivity_of(), stages=sensitivity_of().stages[:1]).losses(branched_option()), "where its stages do"),
    ],
)
def test_predictor_with_unknown_segment_other_join_or_other_meeting_points_is_refused(losses, message):
    with pytest.raises(UsageError, match=message):
        losses()


def test_maximum_loss_of_an_accuracy_gives_back_that_accuracy():
    current = predictor()
    assert current.value(current.max_loss(0.7)) == pytest.approx(0.7)
    assert (current.prediction(0.2).top1, current.prediction(0.2).agreement) == (pytest.approx(current.base - 0.2), None)


def test_written_predictor_is_read_back(tmp_path):
    path = tmp_path / "deep" / "accuracy.json"
    accuracy.save_accuracy(path, predictor())
    assert accuracy.load_accuracy(path, GRAPH.name) == predictor()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read"),
        (b"{", "no accuracy predictor"),
        (b'{"model": "m"}', "no accuracy predictor"),
        (
            b'{"model": "small", "base": 0.5, "weights": {"s1": [1]}, "designs": 1, "rank_correlation": 0, "p_value": 1, "rmse": 0}',
            "no accuracy predictor",
        ),
        (json.encode(predictor(schema=2)), "schema 2"),
        (json.encode(replace(predictor(), model="other")), "is about `other`"),
    ],
)
def test_file_other_than_a_predictor_of_the_network_is_refused_with_its_name(tmp_path, content, message):
    path = tmp_path / "accuracy.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(StretchError, match=message) as caught:
        accuracy.load_accuracy(path, GRAPH.name)
    assert str(path) in caught.value.message


@cache
def sensitivity_of():
    return made(merged_space())


@pytest.mark.parametrize(("graph", "make", "make_source"), [(GRAPH, make_space, predictor), (MEASURED_GRAPH, merged_space, sensitivity_of)])
def test_losses_of_options_add_up_to_the_loss_of_the_design_and_whole_segments_lose_nothing(graph, make, make_source):
    space, source = make(), make_source()
    search_result = search_exact(space, Totals(round(0.9 * graph.macs), round(1.1 * graph.macs), 2))
    design = BranchDesign(graph.name, "mi9", search_result.segments(space.costs))
    total = sum(source.losses(options)[index] for options, index in search_result.picks)
    assert total
    assert source.loss(graph, design) == pytest.approx(total, rel=1e-9)
    assert not any(source.losses(options).any() for group in space.options for options in group if not options.branched)


def test_exact_division_loses_nothing_and_always_agrees():
    sensitivity, segments = sensitivity_of(), make_space(MEASURED_GRAPH).segments
    stage = segments[1]
    bands = tuple(BranchScale(p, stage.depth, stage.width, rows=rows) for p, rows in (("cpu", (0, 40)), ("gpu", (40, 96))))
    parts = [whole(s) for s in segments]
    parts[1] = SegmentDesign(stage.name, stage.start, stage.end, bands, "rows")
    answer = sensitivity.prediction(sensitivity.loss(MEASURED_GRAPH, BranchDesign(MEASURED_GRAPH.name, "mi9", tuple(parts))))
    assert (answer.agreement, answer.low, answer.high, answer.basis, answer.source) == (1.0, 1.0, 1.0, "sensitivity", "predicted")


@given(
    st.lists(st.floats(-3, 0), min_size=len(SEEN_FEATURES), max_size=len(SEEN_FEATURES)), st.integers(0, len(HELPS) - 1), st.floats(0.01, 1)
)
def test_more_depth_width_or_macs_never_increases_the_loss(row, number, more):
    sensitivity, at = sensitivity_of(), SEEN_FEATURES.index(HELPS[number])
    helped = list(row)
    helped[at] += more
    helped_loss, original_loss = sensitivity.loss_of(("s1",), np.array([helped, row]))
    assert 0 < helped_loss <= original_loss


def test_agreement_of_one_allows_no_loss_and_the_interval_widens_with_the_spread():
    sensitivity = sensitivity_of()
    assert (sensitivity.max_loss(1.0), sensitivity.value(0.0)) == (0, 1)
    narrow, wide = (replace(sensitivity, spread=spread).prediction(0.3) for spread in (0.1, 1.0))
    assert wide.low < narrow.low < narrow.agreement < narrow.high < wide.high


def test_early_segment_counts_less_than_a_late_segment():
    shares = [sensitivity_of().counts((stage.name,)) for stage in sensitivity_of().stages]
    assert (shares, shares[-1]) == (sorted(shares), 1)


SPACE = merged_space()


def test_predicted_agreement_follows_the_curve_and_its_range_holds_all_measured_losses():
    current = made(SPACE)
    logs = [np.log(fitting.loss(item.error)) for item in current.alone]
    assert current.range[0] < min(logs) < max(logs) < current.range[1]
    for item in alone(SPACE):
        alone_loss = float(current.loss_of(item.segments[0].stages, np.array([item.segments[0].features]))[0])
        assert current.value(alone_loss) == pytest.approx(agreement(alone_loss), abs=0.08)
    assert current.rank_correlation > 0.9


def test_weights_of_helpful_features_are_never_positive_even_with_noisy_measurements():
    for seed in range(5):
        current = made(SPACE, noise=2.0, seed=seed, count=2)
        assert all(weight <= 0 for name, weight in zip(SEEN_FEATURES, current.weights, strict=True) if name in HELPS)
        assert current.curve[1] > 0
        assert current.spread > 0


def test_one_measurement_is_enough_for_a_predictor():
    fitted = fitting.fit(MEASURED_GRAPH.name, "project", SPACE.segments, alone(SPACE)[:1], [], ON)
    assert 0 < fitted.value(0.3) < 1
    assert fitted.rank_correlation is None


def test_curve_follows_whole_designs_if_enough_were_measured():
    current = made(SPACE)
    designs = random_designs(SPACE, MEASURED_GRAPH.name, "mi9", 6, (0.8, 1.2), 0)
    assert len(designs) == 6
    measured = []
    for item in alone(SPACE)[:6]:
        # these designs agree more often than their single segments predict
        lost = fitting.loss_of_design(current, item.segments)
        measured.append(type(item)(segments=item.segments, error=item.error, agreement=0.5 + agreement(lost) / 2))
    refitted = fitting.fit(MEASURED_GRAPH.name, "project", SPACE.segments, alone(SPACE), measured, ON)
    for item in measured:
        lost = fitting.loss_of_design(refitted, item.segments)
        assert refitted.value(lost) == pytest.approx(item.agreement, abs=0.06)
        assert refitted.value(lost) > current.value(lost)


def test_loss_grows_with_the_error_and_is_bounded():
    losses = [fitting.loss(error) for error in (0.0, 0.1, 0.5, 0.9, 1.0, 1e30)]
    assert losses == sorted(losses)
    assert 0 < losses[0] < losses[-1] < 10


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=3, max_size=20))
def test_rank_correlation_equals_scipy(pairs):
    first, second = (np.array(side, float) for side in zip(*pairs, strict=True))
    result = fitting.spearman(first, second)
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        assert result is None
    else:
        assert result == pytest.approx(spearmanr(first, second).statistic)


def test_option_has_the_features_of_its_design():
    names = tuple(accuracy.SEGMENT_FEATURES)
    space = make_space(GRAPH)
    fastest = search_exact(space, Totals(round(0.9 * GRAPH.macs), round(1.1 * GRAPH.macs), 1))
    design = BranchDesign(GRAPH.name, "mi9", fastest.segments(space.costs))
    changed = {segment.name: row for segment, row in accuracy.changed_segments(GRAPH, design, names)}
    segment_options = {
        options.segment.name: accuracy.option_features(options, names)[index] for options, index in fastest.picks if options.branched
    }
    assert changed.keys() == segment_options.keys() != set()
    for name, row in changed.items():
        assert row == pytest.approx(segment_options[name], abs=1e-12)
    row = dict(zip(names, accuracy.features(np.array([[0.5], [1.0]]), np.array([[1.0], [0.25]]), np.array([0.9]), names)[0], strict=True))
    assert row["log_deepest"] == row["log_widest"] == 0
    assert (row["log_mean_depth"], row["log_largest"]) == (pytest.approx(np.log(0.5) / 2), pytest.approx(np.log(0.5)))
    assert row["log_branches"] == pytest.approx(np.log(2))
