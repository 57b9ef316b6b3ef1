"""Parts of a fit, each by itself, and calibration by whole networks: the measured numbers come back, and the interval narrows."""

import functools
from collections import Counter

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from predictors.devices import load_device
from predictors.errors import StretchError, UsageError
from predictors.fits import Calibration
from predictors.fitting import fit as boosting
from predictors.fitting import networks as module
from predictors.fitting.fit import (
    FEATURES,
    FEW_FAMILIES,
    FOLDS,
    TimedKernel,
    correction,
    family_folds,
    fit_kernels,
    grow,
    time_kernels,
)
from predictors.fitting.networks import (
    INFERENCE,
    Networks,
    TimedCoreSet,
    design,
    fit_core_sets,
    load_formula,
    processor_grain,
    solve,
    solve_robustly,
)
from predictors.fitting.priors import NetworkTime, calibrate, read_networks
from predictors.measurements.networks import load_measurements
from predictors.models.fitted import FittedModel, TreeModel, columns, features, group_name, terms
from predictors.predictor import LatencyPredictor
from tests.effort import examples
from tests.predictors.fitting.worlds import DEVICE, kernel_world, networks, processor, whole_world
from tests.predictors.models.test_fitted import conv, fit


def problem(seed, rows=12, terms=3):
    draw = np.random.default_rng(seed)
    matrix = draw.uniform(0.5, 2.0, (rows, terms)) * np.array([1e9, 1e3, 1.0])[:terms]
    sizes = draw.uniform(0.5, 2.0, terms) / np.array([1e9, 1e3, 1.0])[:terms]
    return matrix, sizes


@given(st.integers(0, 1000))
@settings(max_examples=examples(25))
def test_sizes_that_explain_every_time_are_found(seed):
    matrix, sizes = problem(seed)
    assert solve(matrix, matrix @ sizes) == pytest.approx(sizes, rel=1e-6)


def test_solution_with_a_prior_is_the_least_of_its_sum_of_squares():
    matrix, sizes = problem(3)
    times = matrix @ sizes * np.random.default_rng(1).uniform(0.8, 1.2, 12)
    prior = sizes * np.array([0.5, 2.0, 1.0])
    solution = solve(matrix, times, prior, spread=0.3, noise=0.1)

    def cost(relative):
        c = relative * prior
        return np.sum((matrix @ c / times - 1) ** 2) + 0.1**2 * np.sum(((c - prior) / (0.3 * prior)) ** 2)

    best = minimize(cost, np.ones(3), bounds=[(0, None)] * 3, tol=1e-12)
    assert solution / prior == pytest.approx(best.x, rel=1e-3)


def test_one_time_that_is_wrong_by_far_hardly_counts():
    matrix, sizes = problem(7, rows=30)
    times = matrix @ sizes
    times[4] *= 0.3
    plain, robust = solve(matrix, times, sizes, 10.0), solve_robustly(matrix, times, sizes, 10.0)
    others = np.arange(30) != 4
    worst = [np.abs(matrix[others] @ value / times[others] - 1).max() for value in (plain, robust)]
    assert worst[1] < 0.3 * worst[0]


@given(st.integers(0, 1000))
@settings(max_examples=examples(25))
def test_no_size_is_below_its_least(seed):
    matrix, sizes = problem(seed)
    least = sizes * np.array([0.9, 1.5, 0.0])
    result = solve_robustly(matrix, matrix @ sizes, sizes, 0.5, least=least)
    assert (result >= least * (1 - 1e-9)).all()
    assert solve_robustly(matrix, matrix @ sizes, sizes, 0.5, least=0.5 * sizes) == pytest.approx(sizes, rel=1e-6)


families = st.dictionaries(st.text(min_size=1, max_size=4), st.sampled_from("abcdefgh"), min_size=1, max_size=40)


@given(families)
def test_every_family_is_in_one_fold_and_no_fold_is_empty(of):
    folds = family_folds(of, {name: frozenset() for name in of})
    assert folds.keys() == of.keys()
    assert len({(of[name], fold) for name, fold in folds.items()}) == len(set(of.values()))
    assert set(folds.values()) == set(range(count if (count := len(set(of.values()))) <= FEW_FAMILIES else FOLDS))


def test_large_families_come_first_small_ones_fill_up_and_two_that_alone_have_a_kind_are_apart():
    of = {f"{family}{i}": family for family, size in (("a", 9), ("b", 5), ("c", 4), ("d", 1)) for i in range(size)}
    folds = family_folds(of, {name: frozenset() for name in of}, folds=3)
    assert sorted(Counter(folds.values()).values()) == [5, 5, 9]
    kinds = {name: frozenset({"grouped"} if family in "cd" else ()) for name, family in of.items()}
    folds = family_folds(of, kinds, folds=3)
    assert folds["c0"] != folds["d0"]


def test_backend_that_differs_in_choices_has_the_formula_of_its_base():
    assert load_formula("tflite_gpu_adreno") is load_formula("tflite_gpu")


def test_backend_without_a_formula_is_told_with_those_that_have_one():
    with pytest.raises(StretchError, match="kernels of `hexagon` cannot be fitted") as caught:
        load_formula("hexagon")
    assert "tflite_cpu" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kernels = { conv = ['speed'] }", "speed"),
        ("parameters = [{ term = 'macs', groups = ['conv'], shares = ['luck'], prior = {} }]", "`luck`, which \\[threads\\] lacks"),
        ("colour = 3", "is not a formula"),
    ],
)
def test_wrong_formula_is_refused(tmp_path, monkeypatch, text, message):
    monkeypatch.setattr(module, "FORMULA_FOLDER", tmp_path)
    (tmp_path / "hexagon.toml").write_text(f"source = 'a test'\n{text}\n")
    load_formula.cache_clear()
    try:
        with pytest.raises(StretchError, match=message):
            load_formula("hexagon")
    finally:
        load_formula.cache_clear()


@pytest.fixture(scope="module")
def made():
    graphs, families = networks(6)
    of = Networks(graphs, families, "tflite_cpu")
    return of, design(of, load_formula("tflite_cpu"), processor_grain(processor(), "fp32"), "fp32")


def test_units_are_summed_over_the_kernels_of_a_group_and_every_kernel_is_in_one(made):
    of, table = made
    assert all(group_name(cost, table.groups) for costs in of.costs.values() for cost in costs)
    grain = processor_grain(processor(), "fp32")
    for column, parameter in enumerate(table.parameters):
        for row, name in enumerate(table.names):
            if parameter.term == INFERENCE:
                expected = 1.0
            else:
                inside = [cost for cost in of.costs[name] if (group := group_name(cost, table.groups)) and parameter.applies_to(group)]
                expected = sum(terms.get(parameter.term).units(cost, grain) for cost in inside)
            assert table.units[row, column] == pytest.approx(expected)


def test_groups_of_a_fit_time_networks_as_the_parameters_do(made):
    of, table = made
    sizes = np.random.default_rng(0).uniform(1e-6, 2e-6, len(table.parameters))
    model = FittedModel(fit(*table.stored(sizes)), processor())
    for row, name in enumerate(table.names):
        total = sum(time.ms for time in model.times(of.costs[name])) + model.inference_ms()
        assert total == pytest.approx(table.units[row] @ sizes, rel=1e-5)


def kernels(count=160):
    draw = np.random.default_rng(0)
    return [conv(int(cin), int(cout), int(pixels)) for cin, cout, pixels in draw.integers(1, 300, (count, 3))]


def targets(costs):
    return np.array([0.4 * np.log(cost.out_channels / cost.in_channels) + 0.1 * (cost.pixels > 150) for cost in costs])


@pytest.fixture(scope="module")
def grown():
    costs = kernels()
    return costs, grow(costs, targets(costs), np.ones(len(costs)))


@pytest.mark.slow
def test_flat_trees_give_the_predictions_of_scikit_learn(grown):
    from sklearn.ensemble import HistGradientBoostingRegressor

    costs, trees = grown
    rows = np.stack([np.asarray(features.get(name)(columns(costs)), dtype=float) for name in FEATURES], axis=1)
    model = HistGradientBoostingRegressor(
        max_iter=boosting.ITERATIONS,
        max_leaf_nodes=boosting.LEAVES,
        learning_rate=boosting.RATE,
        min_samples_leaf=boosting.MIN_LEAF,
        l2_regularization=1.0,
        early_stopping=False,
        random_state=0,
    ).fit(rows, targets(costs))
    # Leaves have five decimals.
    assert TreeModel(trees)(columns(costs)) == pytest.approx(
        np.clip(model.predict(rows), -trees.bound, trees.bound), abs=1e-5 * boosting.ITERATIONS
    )


def test_trees_learn_what_they_are_given_and_are_the_same_when_grown_again(grown):
    costs, trees = grown
    assert np.abs(TreeModel(trees)(columns(costs)) - targets(costs)).mean() < 0.05
    assert grow(costs, targets(costs) * (1 + 1e-15), np.ones(len(costs))) == trees


@pytest.fixture(scope="module")
def fitted():
    rows = [TimedKernel(row.network, row.cost, row.ms) for row in kernel_world().kernels]
    grain = processor_grain(processor("gpu"), "fp16")
    return rows, fit_kernels(rows, load_formula("tflite_gpu_adreno"), grain), grain


def test_measured_kernels_take_their_times(fitted):
    rows, groups, grain = fitted
    known = [row for row in rows if row.cost.kind in ("conv", "conv1x1", "depthwise")]
    result = time_kernels(groups, [row.cost for row in known], grain)
    assert np.median(np.abs(result / np.array([row.ms for row in known]) - 1)) < 0.02


def test_terms_are_never_negative_and_say_how_many_kernels_they_are_from(fitted):
    rows, groups, _ = fitted
    assert all(size > 0 for group in groups.values() for size in group.terms.values())
    assert groups["depthwise"].kernels == sum(row.cost.kind == "depthwise" for row in rows)


def test_group_with_hardly_a_kernel_is_left_to_the_roofline(fitted):
    rows, _, grain = fitted
    few = fit_kernels(rows[:2], load_formula("tflite_gpu_adreno"), grain)
    assert few == {}
    assert np.isnan(time_kernels(few, [rows[0].cost], grain)).all()


def test_correction_finds_scale_shares_of_kernels_weights_and_ends_and_fixed_time():
    draw = np.random.default_rng(0)
    sums, kernels, weights = draw.uniform(1, 50, 30), draw.integers(10, 100, 30).astype(float), draw.uniform(1e6, 2e7, 30)
    elements = draw.integers(1e5, 1e7, 30).astype(float)
    result = correction(sums, kernels, weights, elements, 1.2 * sums + 0.01 * kernels + 1e-7 * weights + 2e-7 * elements + 0.8)
    assert (result.scale, result.per_kernel_ms, result.fixed_ms) == (pytest.approx(1.2), pytest.approx(0.01), pytest.approx(0.8))
    assert (result.per_weight_ms, result.per_io_element_ms) == (pytest.approx(1e-7), pytest.approx(2e-7))
    # networks of one size do not show the time of their ends apart from the constant
    alike = correction(sums, kernels, weights, np.full(30, 1e6), 1.2 * sums + 1.0)
    assert (alike.per_io_element_ms, alike.fixed_ms) == (0.0, pytest.approx(1.0))


@pytest.fixture(scope="module")
def world():
    result = whole_world(noise=0.02)
    networks = Networks(result.graphs, result.families, "tflite_cpu")
    built = design(networks, load_formula("tflite_cpu"), processor_grain(processor(), "fp32"), "fp32")
    position = {name: i for i, name in enumerate(built.names)}
    times: dict[tuple[str, str], np.ndarray] = {}
    for row in result.latencies:
        times.setdefault((row.device, row.core_set), np.full(len(built.names), np.nan))[position[row.network]] = row.ms
    return built, [TimedCoreSet(*key, values) for key, values in times.items()]


def test_core_sets_are_read_from_their_names():
    nothing = np.array([])
    assert (TimedCoreSet("d", "1large2med", nothing).cores, TimedCoreSet("d", "1large2med", nothing).single_core) == (3, "1large")
    assert (TimedCoreSet("d", "3small", nothing).cores, TimedCoreSet("d", "3small", nothing).single_core) == (3, "1small")
    assert TimedCoreSet("d", "all", nothing).cores == 1


def test_networks_left_out_are_predicted_on_one_core_and_on_several(world):
    built, sets = world
    training = np.arange(len(built.names)) % 4 != 0
    sizes = fit_core_sets(built, load_formula("tflite_cpu"), "fp32", sets, training)
    for item in sets:
        error = built.units[~training] @ sizes[item.key] / item.times[~training] - 1
        assert np.abs(error).max() < 0.15, item.key
        assert (sizes[item.key] >= 0).all()


def test_networks_that_are_left_out_are_not_looked_at(world):
    built, sets = world
    training = np.arange(len(built.names)) % 4 != 0
    spoilt = [TimedCoreSet(item.device, item.name, np.where(training, item.times, 1e6)) for item in sets]
    clean = fit_core_sets(built, load_formula("tflite_cpu"), "fp32", sets, training)
    for key, sizes in fit_core_sets(built, load_formula("tflite_cpu"), "fp32", spoilt, training).items():
        assert sizes == pytest.approx(clean[key], rel=1e-12)


def test_nothing_is_divided_by_more_than_there_are_cores(world):
    built, sets = world
    training = np.ones(len(built.names), dtype=bool)
    one, two = (next(item for item in sets if item.key == (DEVICE, name)) for name in ("1med", "2med"))
    # Times that say otherwise: a third for two cores.
    faster = [one, TimedCoreSet(DEVICE, "2med", one.times / 3)]
    sizes = fit_core_sets(built, load_formula("tflite_cpu"), "fp32", faster, training)
    assert two.cores == 2
    assert (sizes[DEVICE, "2med"] >= sizes[DEVICE, "1med"] / 2 * (1 - 1e-9)).all()


def test_what_one_thread_does_alone_stays_and_products_are_divided(world):
    built, sets = world
    training = np.arange(len(built.names)) % 4 != 0
    one = next(item for item in sets if item.key == (DEVICE, "1med"))
    alone = fit_core_sets(built, load_formula("tflite_cpu"), "fp32", [one], training)[one.key]
    formula = load_formula("tflite_cpu")
    divided = np.array([formula.threads[parameter.shares[0]].exponent > 0 for parameter in built.parameters])
    times = built.units @ (alone * np.where(divided, 0.5, 1.0))
    sizes = fit_core_sets(built, formula, "fp32", [one, TimedCoreSet(DEVICE, "2med", times)], training)[DEVICE, "2med"]
    assert built.units[~training] @ sizes == pytest.approx(times[~training], rel=0.1)


@functools.cache
def phone_networks():
    """Graphs of the measured networks of phones; to read them takes seconds."""
    graphs = load_measurements("phones").graphs
    return {name: graph for name, graph in graphs.items() if name.startswith(("resnet1", "mobilenetv2", "regnetx"))}


TRUE = {"dense": 0.7, "depthwise": 2.1, "other": 0.8, "gelu": 0.8}


def truth(processor="gpu", precision="fp16"):
    """A Mi 9 whose processor differs from the profile by known factors, and the times of all networks on it."""
    base = load_device("mi9")
    rows = [NetworkTime(model=name, processor=processor, precision=precision, ms=1.0) for name in list(phone_networks())[:1]]
    _, news = calibrate(base, "mi9", rows, lambda row: phone_networks()[row.model], {}, "truth")
    [new] = news.values()
    calibration = Calibration(TRUE, 0.02, 0.7, new.prior.calibration.networks, "truth")
    key = (new.prior.processor, new.prior.core_set, new.prior.precision)
    device = msgspec.structs.replace(base, fits={}, priors={key: msgspec.structs.replace(new.prior, calibration=calibration)})
    predictor = LatencyPredictor(device)
    return base, {name: predictor.predict(graph, processor, precision).ms for name, graph in phone_networks().items()}


def calibrated(base, rows):
    _, news = calibrate(base, "mi9", rows, lambda row: phone_networks()[row.model], phone_networks(), "least of 50 runs")
    [new] = news.values()
    key = (new.prior.processor, new.prior.core_set, new.prior.precision)
    return LatencyPredictor(msgspec.structs.replace(base, fits={}, priors={key: new.prior})), new


def test_five_networks_predict_all_others_of_a_device_that_differs_by_family():
    base, times = truth()
    names = ["resnet10", "mobilenetv2_w3d4", "regnetx006", "resnet18_w3d4", "mobilenetv2b_wd2"]
    predictor, new = calibrated(base, [NetworkTime(model=name, processor="gpu", ms=times[name]) for name in names])
    errors = [predictor.predict(graph, "gpu").ms / times[name] - 1 for name, graph in phone_networks().items()]
    assert np.mean(np.abs(errors)) < 0.05
    estimate = predictor.predict(phone_networks()["resnet16"], "gpu")
    assert estimate.origin == "networks"
    assert estimate.calibrated
    assert estimate.low_ms < times["resnet16"] < estimate.high_ms
    assert new.next_network in phone_networks()


def test_interval_narrows_with_each_network_and_promises_what_the_next_one_gives():
    base, times = truth()
    rows = [NetworkTime(model=name, processor="gpu", ms=times[name]) for name in ("resnet10", "mobilenetv2_w3d4", "regnetx006")]
    highs = [calibrated(base, rows[: count + 1])[1].prior.interval.high for count in range(3)]
    assert highs[0] > highs[1] > highs[2]
    assert calibrated(base, rows)[1].next_width < highs[2]


def test_time_of_a_sibling_counts_less_than_one_of_the_device():
    base, times = truth()
    rows = [NetworkTime(model="resnet10", processor="gpu", ms=times["resnet10"])]
    off = NetworkTime(model="resnet18_w3d4", processor="gpu", ms=2 * times["resnet18_w3d4"])
    near, far = (
        calibrated(base, [*rows, row])[0].predict(phone_networks()["resnet10"], "gpu").ms
        for row in (msgspec.structs.replace(off, spread=0.5), off)
    )
    assert abs(near / times["resnet10"] - 1) < abs(far / times["resnet10"] - 1)


def test_core_sets_without_rows_begin_with_what_the_measured_one_says_and_know_less():
    base, times = truth("cpu[3med]", "int8")
    rows = [NetworkTime(model=name, processor="cpu[3med]", precision="int8", ms=times[name]) for name in list(phone_networks())[:6]]
    priors, news = calibrate(base, "mi9", rows, lambda row: phone_networks()[row.model], phone_networks(), "truth")
    calibrations = {prior.core_set: prior for prior in priors if (prior.processor, prior.precision) == ("cpu", "int8")}
    assert list(news) == ["cpu[3med] int8"]
    assert set(calibrations) == {name for name, cores in base.processors["cpu"].core_sets.items() if "int8" in cores.peak_gops}
    measured = calibrations.pop("3med")
    for prior in calibrations.values():
        assert prior.calibration.factors == pytest.approx(measured.calibration.factors, rel=1e-4)
        assert prior.interval.high > measured.interval.high


def test_times_of_a_sibling_alone_leave_the_doubt_of_the_step_between_the_chips():
    base, times = truth()
    rows = [NetworkTime(model=name, processor="gpu", ms=times[name]) for name in list(phone_networks())[:8]]
    step = [msgspec.structs.replace(row, sibling=0.4) for row in rows]
    (own, _), (other, new) = calibrated(base, rows), calibrated(base, step)
    assert other.predict(phone_networks()["resnet16"], "gpu").ms == pytest.approx(
        own.predict(phone_networks()["resnet16"], "gpu").ms, rel=0.05
    )
    assert new.prior.interval.high > 1.5
    # one network of the device itself decides the step
    faster = NetworkTime(model="resnet16", processor="gpu", ms=times["resnet16"] / 1.5)
    assert calibrated(base, [*step, faster])[0].predict(phone_networks()["resnet18_w3d4"], "gpu").ms < 0.8 * times["resnet18_w3d4"]


def test_constant_of_an_inference_is_found_apart_from_kernels():
    base, times = truth()
    others = [name for name in phone_networks() if name != "resnet16"]
    rows = [NetworkTime(model=name, processor="gpu", ms=times[name] + 6) for name in others[:: len(others) // 12]]
    predictor, new = calibrated(base, rows)
    assert new.prior.calibration.per_inference_ms == pytest.approx(6.7, rel=0.25)
    assert predictor.predict(phone_networks()["resnet16"], "gpu").ms == pytest.approx(times["resnet16"] + 6, rel=0.1)


@pytest.mark.parametrize(
    ("device", "key", "mean", "within"),
    [
        ("pixel6", ("cpu", "1large", "int8"), 0.12, 0.85),
        ("pixel6", ("gpu", "all", "fp16"), 0.2, 0.6),
        ("pixel6", ("tpu", "all", "int8"), 0.2, 0.75),
        ("s23", ("cpu", "1large", "int8"), 0.12, 0.85),
        ("s23", ("gpu", "all", "fp16"), 0.15, 0.75),
    ],
)
def test_networks_of_recent_phones_are_predicted_by_the_others(device, key, mean, within):
    prior = load_device(device).priors[key]
    assert prior.left_out.networks >= 12
    assert prior.left_out.mape <= mean
    assert prior.left_out.within_20 >= within
    assert prior.left_out.coverage >= 0.85


def test_constant_of_pipelines_is_no_part_of_a_networks_time():
    base, times = truth()
    rows = [
        NetworkTime(model=name, processor="gpu", ms=times[name] + 8, pipeline=True)
        for name in ("resnet10", "mobilenetv2_w3d4", "regnetx006", "mobilenetv2_wd4", "resnet16")
    ]
    predictor, new = calibrated(base, rows)
    assert 4 < new.prior.calibration.pipeline_ms < 12
    assert predictor.predict(phone_networks()["resnet16"], "gpu").ms < times["resnet16"] + 4
    with pytest.raises(StretchError, match="2 pipelines"):
        calibrated(base, rows[:2])


def test_row_of_another_unit_or_network_is_named():
    base, times = truth()
    rows = [NetworkTime(model=name, processor="gpu", ms=times[name]) for name in ("resnet10", "mobilenetv2_w3d4", "regnetx006")]
    with pytest.raises(StretchError, match=r"regnetx006 on .* times less than the other rows"):
        calibrated(base, [*rows[:2], msgspec.structs.replace(rows[2], ms=rows[2].ms / 1000)])
    with pytest.raises(StretchError, match="not the network measured"):
        calibrated(base, [msgspec.structs.replace(rows[0], macs=100.0)])
    with pytest.raises(UsageError, match="changes what a network computes"):
        calibrate(base, "mi9", rows, lambda row: phone_networks()[row.model], {}, "", ["silu=relu6"])


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["resnet34,gpu,fp16,0"], "line 2: `ms` is wrong"),
        (["resnet34,gpu,fp16,20", "resnet34,gpu,fp16,30"], "line 3: the same measurement is in line 2"),
        ([], "no measurement"),
    ],
)
def test_table_that_cannot_be_is_refused_with_its_line(tmp_path, lines, words):
    table = tmp_path / "networks.csv"
    table.write_text("\n".join(["model,processor,precision,ms", *lines]) + "\n")
    with pytest.raises(StretchError, match=words):
        read_networks(table)
    table.write_text("model,processor\nresnet34,gpu\n")
    with pytest.raises(StretchError, match="column `ms` is missing"):
        read_networks(table)


def test_core_more_makes_no_network_slower():
    """`1large3med` of the Mi 9, which was never measured, contains `3med`."""
    predictor = LatencyPredictor(load_device("mi9"))
    for precision in ("fp32", "int8"):
        for graph in list(phone_networks().values())[:4]:
            assert predictor.predict(graph, "cpu[1large3med]", precision).ms < predictor.predict(graph, "cpu[3med]", precision).ms


def test_release_profile_predicts_a_network_that_it_was_not_calibrated_by():
    """ResNet-50 on the paper's own phone took 28.8, 37.4 and 30.4 ms."""
    graph = load_measurements("npu").graphs["resnet50"]
    predictor = LatencyPredictor(load_device("mi9-release"))
    for name, ms in (("cpu", 28.8), ("gpu", 37.4), ("dsp", 30.4)):
        estimate = predictor.predict(graph, name)
        assert estimate.low_ms < ms < estimate.high_ms
        assert abs(estimate.ms / ms - 1) < 0.12
