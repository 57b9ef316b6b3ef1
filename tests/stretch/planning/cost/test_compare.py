"""Two runs under uncertain numbers: the recommendation, and the numbers that it depends on."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.predictor import LatencyPredictor
from stretch.planning.cost import compare
from stretch.planning.cost.compare import PredictedRun, UncertainFactor, UncertainStep, divided_ms, processor_lead, recommend
from tests.predictors.networks import small_resnet
from tests.predictors.specified import contending, specified, with_speed

CPU, GPU = UncertainFactor("the cpu", 1 / 1.4, 1.4), UncertainFactor("the gpu", 1 / 1.4, 1.4)


def certainty_of(branched, controls, reference, single):
    """The numbers that a recommendation depends on."""
    return compare.certainty(compare.recommend(branched, controls, reference), branched, controls, single)


def run(*segments):
    """A run of segments, each a list of branches; a branch maps each uncertain number to its time in ms."""
    steps, arrives = [], ()
    for segment in segments:
        branches = tuple(range(len(steps), len(steps) + len(segment)))
        steps += [UncertainStep(parts, arrives) for parts in segment]
        arrives = branches
    return PredictedRun([*steps, UncertainStep({}, arrives, 0.0)])


def compared_control(branched, control):
    [control] = recommend(run(branched), {"control": run(control)}).compared
    return control


def test_errors_of_the_same_number_cancel_and_errors_of_two_processors_are_independent():
    control = compared_control([{CPU: 10.0}], [{CPU: 10.1}])
    assert (control.ratio, control.low, control.high) == pytest.approx((1.01, 1.01, 1.01))
    assert 0.999 < control.probability < 1
    assert control.low_ms < 10.1 / 1.3 < 10.1 * 1.3 < control.high_ms
    control, combined = compared_control([{CPU: 10.0}], [{GPU: 10.0}]), 1.4**2**0.5
    # two intervals of a factor of 1.4 in both directions, combined as the root of the sum of squares
    assert (control.low, control.high) == pytest.approx((1 / combined, combined), rel=0.05)
    assert control.probability == pytest.approx(0.5, abs=0.05)


def test_parallel_branches_lose_when_one_is_slower_and_gain_nothing_when_one_is_faster():
    runs = run([{CPU: 7.0}, {GPU: 7.0}]), {"cpu": run([{CPU: 7.0}])}
    [control] = recommend(*runs).compared
    assert (control.high, control.low < 0.8) == (pytest.approx(1.0), True)
    # on average the longer of two branches takes longer than either alone
    assert certainty_of(*runs, (), None).makespan_low_ms > 7 / 1.4


@pytest.mark.parametrize(
    ("branched", "controls", "recommended"),
    [
        (39.82, {"single:gpu": {CPU: 39.86}}, "single:gpu"),
        (9.0, {"single:gpu": {CPU: 9.26}}, "single:gpu"),
        (9.0, {"single:gpu": {CPU: 9.28}}, compare.BRANCHED),
        (9.0, {"single:gpu": {CPU: 9.28}, "a": {CPU: 9.1}}, "a"),
        (3.0, {"a": {GPU: 4.2}}, compare.NO_CLEAR_WINNER),
        (3.19, {"sequential_same_macs": {GPU: 3.20}}, compare.NO_CLEAR_WINNER),
        (3.0, {"a": {GPU: 9.0}, "b": {GPU: 10.0}}, compare.BRANCHED),
        (3.0, {"a": {GPU: 9.0}, "b": {GPU: 3.1}}, compare.NO_CLEAR_WINNER),
        (9.0, {"a": {GPU: 3.0}, "b": {GPU: 9.0}}, "a"),
        (9.0, {"a": {GPU: 8.7}}, compare.NO_CLEAR_WINNER),
        (9.0, {"a": {CPU: 8.0}}, "a"),
    ],
)
def test_branches_are_recommended_only_if_their_gain_is_certain_and_large_enough(branched, controls, recommended):
    result = recommend(run([{CPU: branched}, {CPU: branched}]), {name: run([parts]) for name, parts in controls.items()})
    assert result.recommended == recommended


def test_branches_that_do_not_run_in_parallel_are_never_recommended():
    alone = {"single:gpu": run([{CPU: 20.0}])}
    for branches in (
        [UncertainStep({CPU: 5.0})],
        [UncertainStep({CPU: 5.0}), UncertainStep({})],
        [UncertainStep({CPU: 5.0}), UncertainStep({CPU: 2.0}, (0,))],
    ):
        assert not PredictedRun(branches).overlaps
        assert recommend(PredictedRun(branches), alone).recommended == compare.NO_CLEAR_WINNER
    chain = [UncertainStep({CPU: 5.0}), UncertainStep({}, (0,)), UncertainStep({GPU: 5.0}, (1,))]
    assert not PredictedRun(chain).overlaps
    parallel = [UncertainStep({CPU: 5.0}), UncertainStep({CPU: 1.0}, (0,)), UncertainStep({CPU: 1.0}, (0,))]
    assert recommend(PredictedRun(parallel), alone).recommended == compare.BRANCHED


def test_number_to_measure_next_is_the_number_that_changes_the_ratio_most():
    wide = UncertainFactor("the link", 0.5, 2.0)
    assert compared_control([{CPU: 8.0, wide: 1.0}], [{GPU: 9.0}]).measure in ("the cpu", "the gpu")
    assert compared_control([{CPU: 5.0, wide: 4.0}], [{CPU: 9.0}]).measure == "the link"
    assert compared_control([{CPU: 5.0}], [{CPU: 9.0}]).measure is None


WHOLE_CPU, WHOLE_GPU = (UncertainFactor(f"all on {name}", 1 / 1.2, 1.2, compare.computing_factor_name(name)) for name in ("cpu", "gpu"))
LINK = compare.link("gpu", specified("mi9"))


def test_each_group_of_numbers_is_changed_by_the_same_factor_in_all_runs():
    branched, alone = run([{WHOLE_CPU: 5.0}, {WHOLE_GPU: 4.0, LINK: 2.0}]), run([{WHOLE_GPU: 9.0}])
    result = certainty_of(branched, {"single:gpu": alone}, (), "single:gpu")
    rows = {(row.numbers, row.factor): row for row in result.changes}
    assert set(rows) == {(group, factor) for group in (compare.LINKS, "times on cpu", "times on gpu") for factor in (0.5, 2.0)}
    for name, speedup in (("times on gpu", 18 / 10), ("times on cpu", 0.9)):
        assert (rows[name, 2.0].makespan_ms, rows[name, 2.0].speedup) == pytest.approx((10.0, speedup))
    assert rows[compare.LINKS, 0.5].makespan_ms == pytest.approx(5.0)


@pytest.mark.parametrize(("factor", "recommended"), [(0.5, "single:gpu"), (2.0, compare.BRANCHED)])
def test_recommendation_under_changed_numbers_equals_that_of_runs_with_these_numbers(factor, recommended):
    def runs(factor):
        return run([{WHOLE_CPU: 6.0}, {WHOLE_GPU: 6.0 * factor}]), {"single:gpu": run([{WHOLE_GPU: 9.0 * factor}])}

    changes = certainty_of(*runs(1), (), None).changes
    predicted = next(row.recommended for row in changes if (row.numbers, row.factor) == ("times on gpu", factor))
    assert predicted == recommend(*runs(factor)).recommended == recommended


def test_reference_controls_do_not_change_the_recommendation():
    result = certainty_of(run([{WHOLE_CPU: 6.0}, {WHOLE_CPU: 6.0}]), {"trained": run([{WHOLE_GPU: 1.0}])}, ("trained",), None)
    assert {(row.recommended, row.speedup) for row in result.changes} == {(compare.BRANCHED, None)}


@given(st.floats(1.0, 20.0), st.floats(1.0, 20.0), st.floats(1.0, 20.0))
def test_crossover_is_where_the_branches_take_as_long_as_the_best_single_processor(cpu, gpu, alone):
    branched, single = run([{WHOLE_CPU: cpu}, {WHOLE_GPU: gpu}]), run([{WHOLE_GPU: alone}])
    crossover = certainty_of(branched, {"single:gpu": single}, (), "single:gpu").crossover
    if max(cpu, gpu) <= alone or gpu > alone:
        assert crossover is None
    else:
        assert branched.ms({WHOLE_CPU: 1 / crossover}) == pytest.approx(alone, rel=1e-4)


MI9 = specified("mi9")


def test_kernel_kinds_without_a_fit_err_independently_and_add_up_with_the_transfers_of_a_branch():
    estimate = LatencyPredictor(MI9).predict(small_resnet(), "dsp")
    result = compare.kernel_times(estimate, MI9)
    assert sum(result.values()) == pytest.approx(estimate.computing_ms)
    assert {key.what for key in result} == {f"{kernel.kernel.cost.kind} kernels on dsp" for kernel in estimate.kernels}
    factor = 1 + MI9.processors["dsp"].uncertainty.value
    assert all((key.low, key.high) == (1 / factor, factor) for key in result)
    branch = PredictedRun([UncertainStep.of(estimate, MI9, {"dsp": 3.0}, estimate.computing_ms + 2.0)])
    assert branch.ms() == pytest.approx(estimate.computing_ms + 5.0)
    assert branch.ms({compare.link("dsp", MI9): 2.0}) == pytest.approx(estimate.computing_ms + 8.0)


def test_interval_of_a_number_holds_90_percent_of_its_draws():
    for key, factors in compare.draw_factors([UncertainFactor("a", 0.7, 1.4), UncertainFactor("skewed", 0.9, 2.0), LINK]).items():
        inside = (key.low <= factors) & (factors <= key.high)
        assert inside.mean() == pytest.approx(0.9, abs=0.03)
        assert compare.interval(factors) == pytest.approx((key.low, key.high), rel=0.1)


def test_slowest_branch_is_found_for_each_draw():
    one, other = UncertainFactor("one", 0.5, 2.0), UncertainFactor("other", 0.5, 2.0)
    run = PredictedRun([UncertainStep({one: 1.0}), UncertainStep({other: 1.0})])
    assert list(run.drawn_ms({one: np.array([1.0, 5.0]), other: np.array([2.0, 3.0])})) == [2.0, 5.0]
    assert run.ms({one: 3.0, other: 2.0}) == 3.0


@given(st.floats(0.5, 2.0), st.floats(0.0, 1.0))
def test_time_next_to_another_processor_is_as_uncertain_as_the_factor_of_the_pair(value, share):
    device = contending(MI9, {("dsp", "cpu"): value, ("cpu", "dsp"): 1.5})
    estimate = LatencyPredictor(device).predict(small_resnet(), "dsp")
    ms = estimate.computing_ms * value
    branch = UncertainStep.of(estimate, device, {}, ms, {"cpu": share * ms} if share else {})
    keys = list(branch.contended)
    assert branch.ms({}) == pytest.approx(ms)
    assert [key.what for key in keys] == ["contention of cpu on dsp"] * (share > 0)
    for key in keys:
        assert (key.low, key.high) == pytest.approx((1 / 1.2, 1.2))
        changing = ms * share * sum(estimate.computing.shares)
        assert branch.ms({key: key.high}) == pytest.approx(ms + 0.2 * changing)
        assert branch.ms({key: key.low}) == pytest.approx(ms - (1 - 1 / 1.2) * changing)


WORK = st.floats(0.1, 100)


@given(st.lists(st.tuples(WORK, st.floats(0, 10)), min_size=1, max_size=4))
def test_divided_time_is_reached_when_shares_add_up_to_the_whole(processors):
    times = {str(i): ms for i, (ms, _) in enumerate(processors)}
    exchange = {str(i): ms for i, (_, ms) in enumerate(processors)}
    end = divided_ms(times, exchange)
    done = sum(max(0.0, end - exchange[name]) / ms for name, ms in times.items())
    assert done == pytest.approx(1.0)
    assert end <= min(times[name] + exchange[name] for name in times) * (1 + 1e-9)


def lead_of(device, best, processors=("cpu", "gpu", "dsp")):
    """The lead of a processor over the others on a device, for a small network."""
    precision = {name: device.processor(name).default_precision for name in processors}
    return processor_lead(small_resnet(64), LatencyPredictor(device), precision, (best, precision[best]))


def test_lead_within_the_intervals_is_not_far():
    device = with_speed(specified("mi9"), "dsp", 0.01)
    far, crossover = lead_of(device, "gpu", ("gpu", "dsp"))
    assert far
    for factor, still_far in ((0.99 * 1.4**2, False), (1.01 * 1.4**2, True)):  # both times are uncertain by 40 %
        closer = with_speed(device, "dsp", crossover / factor)
        assert lead_of(closer, "gpu", ("gpu", "dsp")) == (still_far, pytest.approx(factor))


def test_no_crossover_exists_if_other_processors_help_already():
    device, change = specified("mi9"), msgspec.structs.replace
    parts = ("map_ms", "unmap_ms", "sync_ms")
    links = {name: change(link, **{p: change(getattr(link, p), value=0.0) for p in parts}) for name, link in device.links.items()}
    assert lead_of(change(device, links=links), "dsp") == (False, None)
