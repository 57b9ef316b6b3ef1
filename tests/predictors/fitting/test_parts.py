"""Steps of a fit, and calibration by whole networks: both recover known numbers, and the interval narrows with measurements."""

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
from predictors.fitting import fit as fitting
from predictors.fitting import networks as parts
from predictors.fitting.priors import NetworkTime, calibrate, read_networks
from predictors.measurements.networks import load_measurements
from predictors.models.fitted import FittedModel, TreeModel, columns, features, group_name, terms
from predictors.predictor import LatencyPredictor
from tests.effort import examples
from tests.predictors.fitting.worlds import DEVICE, kernel_world, networks, processor, whole_world
from tests.predictors.models.test_fitted import conv, fit

CPU = parts.load_formula("tflite_cpu")


def problem(seed, rows=12):
    draw, units = np.random.default_rng(seed), np.array([1e9, 1e3, 1.0])
    return draw.uniform(0.5, 2.0, (rows, 3)) * units, draw.uniform(0.5, 2.0, 3) / units


def test_solution_with_a_prior_minimises_its_sum_of_squares():
    matrix, sizes = problem(3)
    times = matrix @ sizes * np.random.default_rng(1).uniform(0.8, 1.2, 12)
    prior = sizes * np.array([0.5, 2.0, 1.0])
    solution = parts.solve(matrix, times, prior, spread=0.3, noise=0.1)

    def cost(relative):
        c = relative * prior
        return np.sum((matrix @ c / times - 1) ** 2) + 0.1**2 * np.sum(((c - prior) / (0.3 * prior)) ** 2)

    best = minimize(cost, np.ones(3), bounds=[(0, None)] * 3, tol=1e-12)
    assert solution / prior == pytest.approx(best.x, rel=1e-3)


def test_one_outlier_hardly_changes_the_solution():
    matrix, sizes = problem(7, rows=30)
    times = matrix @ sizes
    times[4] *= 0.3
    plain, robust = parts.solve(matrix, times, sizes, 10.0), parts.solve_robustly(matrix, times, sizes, 10.0)
    kept = np.arange(30) != 4
    worst = [np.abs(matrix[kept] @ value / times[kept] - 1).max() for value in (plain, robust)]
    assert worst[1] < 0.3 * worst[0]


@given(st.integers(0, 1000))
@settings(max_examples=examples(25))
def test_sizes_that_explain_all_times_are_found_and_lower_bounds_are_kept(seed):
    matrix, sizes = problem(seed)
    assert parts.solve(matrix, matrix @ sizes) == pytest.approx(sizes, rel=1e-6)
    least = sizes * np.array([0.9, 1.5, 0.0])
    result = parts.solve_robustly(matrix, matrix @ sizes, sizes, 0.5, least=least)
    assert (result >= least * (1 - 1e-9)).all()
    assert parts.solve_robustly(matrix, matrix @ sizes, sizes, 0.5, least=0.5 * sizes) == pytest.approx(sizes, rel=1e-6)


@given(st.dictionaries(st.text(min_size=1, max_size=4), st.sampled_from("abcdefgh"), min_size=1, max_size=40))
def test_every_family_is_in_one_fold_and_no_fold_is_empty(families):
    folds = fitting.family_folds(families, {name: frozenset() for name in families})
    assert folds.keys() == families.keys()
    assert len({(families[name], fold) for name, fold in folds.items()}) == len(set(families.values()))
    assert set(folds.values()) == set(range(count if (count := len(set(families.values()))) <= fitting.FEW_FAMILIES else fitting.FOLDS))


def test_folds_are_balanced_and_the_only_two_families_of_a_kind_are_in_different_folds():
    families = {f"{family}{i}": family for family, size in (("a", 9), ("b", 5), ("c", 4), ("d", 1)) for i in range(size)}
    folds = fitting.family_folds(families, {name: frozenset() for name in families}, folds=3)
    assert sorted(Counter(folds.values()).values()) == [5, 5, 9]
    kinds = {name: frozenset({"grouped"} if family in "cd" else ()) for name, family in families.items()}
    folds = fitting.family_folds(families, kinds, folds=3)
    assert folds["c0"] != folds["d0"]


def test_backend_has_the_formula_of_its_base_and_a_missing_or_invalid_formula_is_refused(tmp_path, monkeypatch):
    assert parts.load_formula("tflite_gpu_adreno") is parts.load_formula("tflite_gpu")
    with pytest.raises(StretchError, match="`hexagon`") as caught:
        parts.load_formula("hexagon")
    assert "tflite_cpu" in caught.value.hint
    monkeypatch.setattr(parts, "FORMULA_FOLDER", tmp_path)
    for text, message in (
        ("kernels = { conv = ['speed'] }", "speed"),
        ("parameters = [{ term = 'macs', groups = ['conv'], shares = ['luck'], prior = {} }]", "`luck`"),
        ("colour = 3", "formula"),
    ):
        (tmp_path / "hexagon.toml").write_text(f"source = 'a test'\n{text}\n")
        with pytest.raises(StretchError, match=message):
            parts.load_formula.__wrapped__("hexagon")


def designed(graphs, families):
    """Networks on one core in fp32, and the design matrix of their fit."""
    networks_of_fit = parts.Networks(graphs, families, "tflite_cpu")
    return networks_of_fit, parts.design(networks_of_fit, CPU, parts.processor_grain(processor(), "fp32"), "fp32")


@pytest.fixture(scope="module")
def fitted_design():
    return designed(*networks(6))


def test_units_are_summed_over_the_kernels_of_a_group_and_every_kernel_has_a_group(fitted_design):
    measured, table = fitted_design
    assert all(group_name(cost, table.groups) for costs in measured.costs.values() for cost in costs)
    grain = parts.processor_grain(processor(), "fp32")
    for column, parameter in enumerate(table.parameters):
        for row, name in enumerate(table.names):
            inside = [cost for cost in measured.costs[name] if (group := group_name(cost, table.groups)) and parameter.applies_to(group)]
            constant = parameter.term == parts.INFERENCE
            expected = 1.0 if constant else sum(terms.get(parameter.term).units(cost, grain) for cost in inside)
            assert table.units[row, column] == pytest.approx(expected)


def test_groups_of_a_fit_give_the_networks_times_of_the_parameters(fitted_design):
    measured, table = fitted_design
    sizes = np.random.default_rng(0).uniform(1e-6, 2e-6, len(table.parameters))
    model = FittedModel(fit(*table.stored(sizes)), processor())
    for row, name in enumerate(table.names):
        total = sum(time.ms for time in model.times(measured.costs[name])) + model.inference_ms()
        assert total == pytest.approx(table.units[row] @ sizes, rel=1e-5)


def targets(costs):
    return np.array([0.4 * np.log(cost.out_channels / cost.in_channels) + 0.1 * (cost.pixels > 150) for cost in costs])


@pytest.fixture(scope="module")
def grown():
    costs = [conv(*map(int, row)) for row in np.random.default_rng(0).integers(1, 300, (160, 3))]
    return costs, fitting.grow(costs, targets(costs), np.ones(len(costs)))


@pytest.mark.slow
def test_flat_trees_give_the_predictions_of_scikit_learn(grown):
    from sklearn.ensemble import HistGradientBoostingRegressor

    costs, trees = grown
    rows = np.stack([np.asarray(features.get(name)(columns(costs)), dtype=float) for name in fitting.FEATURES], axis=1)
    names = {"max_iter": "ITERATIONS", "max_leaf_nodes": "LEAVES", "learning_rate": "RATE", "min_samples_leaf": "MIN_LEAF"}
    fixed = {option: getattr(fitting, name) for option, name in names.items()}
    model = HistGradientBoostingRegressor(**fixed, l2_regularization=1.0, early_stopping=False, random_state=0).fit(rows, targets(costs))
    wanted = np.clip(model.predict(rows), -trees.bound, trees.bound)
    # Leaves have five decimals.
    assert TreeModel(trees)(columns(costs)) == pytest.approx(wanted, abs=1e-5 * fitting.ITERATIONS)


def test_trees_learn_their_targets_and_are_reproducible(grown):
    costs, trees = grown
    assert np.abs(TreeModel(trees)(columns(costs)) - targets(costs)).mean() < 0.05
    assert fitting.grow(costs, targets(costs) * (1 + 1e-15), np.ones(len(costs))) == trees


def test_measured_kernels_are_fitted_by_positive_terms_and_too_few_kernels_by_none():
    rows = [fitting.TimedKernel(row.network, row.cost, row.ms) for row in kernel_world().kernels]
    formula, grain = parts.load_formula("tflite_gpu_adreno"), parts.processor_grain(processor("gpu"), "fp16")
    groups = fitting.fit_kernels(rows, formula, grain)
    timed = [row for row in rows if row.cost.kind in ("conv", "conv1x1", "depthwise")]
    result = fitting.time_kernels(groups, [row.cost for row in timed], grain)
    assert np.median(np.abs(result / np.array([row.ms for row in timed]) - 1)) < 0.02
    assert all(size > 0 for group in groups.values() for size in group.terms.values())
    assert groups["depthwise"].kernels == sum(row.cost.kind == "depthwise" for row in rows)
    few = fitting.fit_kernels(rows[:2], formula, grain)
    assert few == {}
    assert np.isnan(fitting.time_kernels(few, [rows[0].cost], grain)).all()


def test_correction_finds_the_scale_the_constant_and_times_per_kernel_weight_and_io_element():
    draw = np.random.default_rng(0)
    sums, kernels, weights = draw.uniform(1, 50, 30), draw.integers(10, 100, 30).astype(float), draw.uniform(1e6, 2e7, 30)
    elements = draw.integers(1e5, 1e7, 30).astype(float)
    result = fitting.correction(sums, kernels, weights, elements, 1.2 * sums + 0.01 * kernels + 1e-7 * weights + 2e-7 * elements + 0.8)
    assert (result.scale, result.per_kernel_ms, result.fixed_ms) == pytest.approx((1.2, 0.01, 0.8))
    assert (result.per_weight_ms, result.per_io_element_ms) == pytest.approx((1e-7, 2e-7))
    # for networks with inputs of one size, the time of inputs and outputs cannot be separated from the constant
    one_size = fitting.correction(sums, kernels, weights, np.full(30, 1e6), 1.2 * sums + 1.0)
    assert (one_size.per_io_element_ms, one_size.fixed_ms) == (0.0, pytest.approx(1.0))


@pytest.fixture(scope="module")
def world():
    result = whole_world(noise=0.02)
    _, built = designed(result.graphs, result.families)
    position = {name: i for i, name in enumerate(built.names)}
    times: dict[tuple[str, str], np.ndarray] = {}
    for row in result.latencies:
        times.setdefault((row.device, row.core_set), np.full(len(built.names), np.nan))[position[row.network]] = row.ms
    return built, [parts.TimedCoreSet(*key, values) for key, values in times.items()]


@pytest.mark.parametrize(("name", "cores", "single"), [("1large2med", 3, "1large"), ("3small", 3, "1small"), ("all", 1, None)])
def test_core_sets_are_read_from_their_names(name, cores, single):
    places = parts.TimedCoreSet("d", name, np.array([]))
    assert (places.cores, single and places.single_core) == (cores, single)


def sizes_of(built, sets, training):
    return parts.fit_core_sets(built, CPU, "fp32", sets, training)


def test_left_out_networks_are_predicted_on_one_and_several_cores_and_do_not_influence_the_fit(world):
    built, sets = world
    training = np.arange(len(built.names)) % 4 != 0
    sizes = sizes_of(built, sets, training)
    spoilt = [parts.TimedCoreSet(item.device, item.name, np.where(training, item.times, 1e6)) for item in sets]
    refitted = sizes_of(built, spoilt, training)
    for item in sets:
        error = built.units[~training] @ sizes[item.key] / item.times[~training] - 1
        assert np.abs(error).max() < 0.15, item.key
        assert (sizes[item.key] >= 0).all()
        assert refitted[item.key] == pytest.approx(sizes[item.key], rel=1e-12)


def test_products_are_divided_by_at_most_the_number_of_cores_and_serial_work_is_not_divided(world):
    built, sets = world
    one = next(item for item in sets if item.key == (DEVICE, "1med"))
    # Contradicting times: a third on two cores.
    sizes = sizes_of(built, [one, parts.TimedCoreSet(DEVICE, "2med", one.times / 3)], np.ones(len(built.names), dtype=bool))
    assert (sizes[DEVICE, "2med"] >= sizes[one.key] / 2 * (1 - 1e-9)).all()
    training = np.arange(len(built.names)) % 4 != 0
    one_core = sizes_of(built, [one], training)[one.key]
    divided = np.array([CPU.threads[parameter.shares[0]].exponent > 0 for parameter in built.parameters])
    times = built.units @ (one_core * np.where(divided, 0.5, 1.0))
    sizes = sizes_of(built, [one, parts.TimedCoreSet(DEVICE, "2med", times)], training)[DEVICE, "2med"]
    assert built.units[~training] @ sizes == pytest.approx(times[~training], rel=0.1)


@functools.cache
def phone_networks():
    """Graphs of the networks measured on phones; reading them takes seconds."""
    graphs = load_measurements("phones").graphs
    return {name: graph for name, graph in graphs.items() if name.startswith(("resnet1", "mobilenetv2", "regnetx"))}


def calibrate_rows(base, rows, known, *more):
    """All priors of the device, and the new ones from rows of measured networks."""
    return calibrate(base, "mi9", rows, lambda row: phone_networks()[row.model], known, "truth", *more)


def priors(base, prior, **changes):
    """A predictor of a device with this prior only."""
    key = (prior.processor, prior.core_set, prior.precision)
    return LatencyPredictor(msgspec.structs.replace(base, fits={}, priors={key: msgspec.structs.replace(prior, **changes)}))


def gpu_rows(times, names, **more):
    return [NetworkTime(model=name, processor="gpu", ms=times[name], **more) for name in names]


THREE = ("resnet10", "mobilenetv2_w3d4", "regnetx006")


@functools.cache
def truth(processor="gpu", precision="fp16"):
    """The Mi 9 profile, and times of all networks on a Mi 9 that differs from it by known factors."""
    base = load_device("mi9")
    name = next(iter(phone_networks()))
    [new] = calibrate_rows(base, [NetworkTime(model=name, processor=processor, precision=precision, ms=1.0)], {})[1].values()
    factors = {"dense": 0.7, "depthwise": 2.1, "other": 0.8, "gelu": 0.8}
    calibration = Calibration(factors, 0.02, 0.7, new.prior.calibration.networks, "truth")
    predictor = priors(base, new.prior, calibration=calibration)
    return base, {name: predictor.predict(graph, processor, precision).ms for name, graph in phone_networks().items()}


def calibrated(base, rows):
    [new] = calibrate_rows(base, rows, phone_networks())[1].values()
    return priors(base, new.prior), new


def test_five_networks_predict_all_others_of_a_device_that_differs_by_family():
    base, times = truth()
    predictor, new = calibrated(base, gpu_rows(times, (*THREE, "resnet18_w3d4", "mobilenetv2b_wd2")))
    errors = [predictor.predict(graph, "gpu").ms / times[name] - 1 for name, graph in phone_networks().items()]
    assert np.mean(np.abs(errors)) < 0.05
    estimate = predictor.predict(phone_networks()["resnet16"], "gpu")
    assert (estimate.origin, estimate.calibrated) == ("networks", True)
    assert estimate.low_ms < times["resnet16"] < estimate.high_ms
    assert new.next_network in phone_networks()
    # the interval narrows with each network, and `next_width` predicts the next interval
    calibrations = [calibrated(base, gpu_rows(times, THREE[: count + 1]))[1] for count in range(3)]
    highs = [item.prior.interval.high for item in calibrations]
    assert highs[0] > highs[1] > highs[2] > calibrations[2].next_width


def test_time_of_a_sibling_counts_less_than_one_of_the_device():
    base, times = truth()
    rows, off = gpu_rows(times, THREE[:1]), ({"spread": 0.5}, {})
    double = {"resnet18_w3d4": 2 * times["resnet18_w3d4"]}
    near, far = (
        calibrated(base, [*rows, *gpu_rows(double, double, **more)])[0].predict(phone_networks()["resnet10"], "gpu").ms for more in off
    )
    assert abs(near / times["resnet10"] - 1) < abs(far / times["resnet10"] - 1)


def test_core_sets_without_rows_take_the_factors_of_the_measured_one_with_wider_intervals():
    base, times = truth("cpu[3med]", "int8")
    rows = [NetworkTime(model=name, processor="cpu[3med]", precision="int8", ms=times[name]) for name in list(phone_networks())[:6]]
    found, new = calibrate_rows(base, rows, phone_networks())
    calibrations = {prior.core_set: prior for prior in found if (prior.processor, prior.precision) == ("cpu", "int8")}
    assert list(new) == ["cpu[3med] int8"]
    assert set(calibrations) == {name for name, cores in base.processors["cpu"].core_sets.items() if "int8" in cores.peak_gops}
    measured = calibrations.pop("3med")
    for prior in calibrations.values():
        assert prior.calibration.factors == pytest.approx(measured.calibration.factors, rel=1e-4)
        assert prior.interval.high > measured.interval.high


def test_times_of_a_sibling_only_leave_a_wide_interval_for_the_step_between_the_chips():
    base, times = truth()
    names, network = list(phone_networks())[:8], phone_networks()["resnet16"]
    step = gpu_rows(times, names, sibling=0.4)
    (own, _), (other, new) = calibrated(base, gpu_rows(times, names)), calibrated(base, step)
    assert other.predict(network, "gpu").ms == pytest.approx(own.predict(network, "gpu").ms, rel=0.05)
    assert new.prior.interval.high > 1.5
    # one measured network of the device itself determines the step between the chips
    faster = gpu_rows({"resnet16": times["resnet16"] / 1.5}, ["resnet16"])
    assert calibrated(base, [*step, *faster])[0].predict(phone_networks()["resnet18_w3d4"], "gpu").ms < 0.8 * times["resnet18_w3d4"]


def test_constant_of_an_inference_is_separated_from_kernel_times():
    base, times = truth()
    names = [name for name in phone_networks() if name != "resnet16"]
    predictor, new = calibrated(base, gpu_rows({name: ms + 6 for name, ms in times.items()}, names[:: len(names) // 12]))
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


def test_constant_of_a_pipeline_is_not_added_to_a_networks_time():
    base, times = truth()
    rows = gpu_rows({name: ms + 8 for name, ms in times.items()}, (*THREE, "mobilenetv2_wd4", "resnet16"), pipeline=True)
    predictor, new = calibrated(base, rows)
    assert 4 < new.prior.calibration.pipeline_ms < 12
    assert predictor.predict(phone_networks()["resnet16"], "gpu").ms < times["resnet16"] + 4
    with pytest.raises(StretchError, match="2 pipelines"):
        calibrated(base, rows[:2])


def test_row_in_another_unit_or_of_another_network_is_refused():
    base, times = truth()
    rows = gpu_rows(times, THREE)
    with pytest.raises(StretchError, match="regnetx006"):
        calibrated(base, [*rows[:2], msgspec.structs.replace(rows[2], ms=rows[2].ms / 1000)])
    with pytest.raises(StretchError, match="not the network"):
        calibrated(base, [msgspec.structs.replace(rows[0], macs=100.0)])
    with pytest.raises(UsageError, match="changes what"):
        calibrate_rows(base, rows, {}, ["silu=relu6"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model,processor,precision,ms\nresnet34,gpu,fp16,0\n", "line 2: `ms`"),
        ("model,processor,precision,ms\nresnet34,gpu,fp16,20\nresnet34,gpu,fp16,30\n", "line 3: .* line 2"),
        ("model,processor,precision,ms\n", "no measurement"),
        ("model,processor\nresnet34,gpu\n", "column `ms`"),
    ],
)
def test_invalid_table_is_refused_with_its_line(tmp_path, text, message):
    (tmp_path / "networks.csv").write_text(text)
    with pytest.raises(StretchError, match=message):
        read_networks(tmp_path / "networks.csv")


def test_additional_core_makes_no_network_slower():
    """`1large3med` of the Mi 9, which was never measured, contains `3med`."""
    predictor = LatencyPredictor(load_device("mi9"))
    for precision in ("fp32", "int8"):
        for graph in list(phone_networks().values())[:4]:
            assert predictor.predict(graph, "cpu[1large3med]", precision).ms < predictor.predict(graph, "cpu[3med]", precision).ms


def test_release_profile_predicts_a_network_that_its_calibration_did_not_use():
    """ResNet-50 on the paper's own phone took 28.8, 37.4 and 30.4 ms."""
    graph = load_measurements("npu").graphs["resnet50"]
    predictor = LatencyPredictor(load_device("mi9-release"))
    for name, ms in (("cpu", 28.8), ("gpu", 37.4), ("dsp", 30.4)):
        estimate = predictor.predict(graph, name)
        assert estimate.low_ms < ms < estimate.high_ms
        assert abs(estimate.ms / ms - 1) < 0.12
