from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from predictors.devices import load_device
from predictors.errors import StretchError, UnknownNameError
from predictors.fitting.fit import fit_device
from predictors.fitting.networks import family_coverage, interval_ends
from tests.predictors.fitting.worlds import DEVICE, kernel_world, nothing_borrowed, whole_world


@pytest.fixture(scope="module", autouse=True)
def no_borrowed_kernels():
    with nothing_borrowed():
        yield


def test_held_out_figures_agree_with_the_predictions():
    for item in fit_device(whole_world(noise=0.02), load_device(DEVICE)):
        assert item.predicted.keys() == item.measured.keys()
        errors, held_out = np.array([abs(item.predicted[name] / ms - 1) for name, ms in item.measured.items()]), item.fit.held_out
        assert (held_out.within_10, held_out.mape) == pytest.approx((np.mean(errors <= 0.1), errors.mean()), rel=1e-4)
        assert (held_out.networks, held_out.families, held_out.folds) == (20, 5, 5)
        # The true times follow the formula, with 2 % noise.
        assert held_out.within_20 >= 0.9


@pytest.mark.slow
def test_left_out_family_does_not_influence_its_predictions():
    """Tripled times of one family change the predictions of other families, but not its own."""
    world = whole_world()
    spoilt = [structs.replace(row, ms=3 * row.ms) if world.families[row.network] == "mobile" else row for row in world.latencies]
    plain, other = (fit_device(value, load_device(DEVICE)) for value in (world, replace(world, latencies=spoilt)))
    for one, two in zip(plain, other, strict=True):
        predicted = [name for name in one.predicted if world.families[name] == "mobile"]
        assert [two.predicted[name] for name in predicted] == pytest.approx([one.predicted[name] for name in predicted], rel=1e-9)


def test_kernels_are_fitted_if_their_times_were_measured():
    (item,) = fit_device(kernel_world(), load_device(DEVICE))
    assert (item.fit.processor, item.fit.precision) == ("gpu", "fp16")
    assert item.fit.groups["depthwise"].kernels > 0
    assert item.fit.correction.fixed_ms == pytest.approx(0.5, abs=0.05)
    assert item.fit.held_out.within_20 >= 0.9


@pytest.mark.slow
def test_measurements_of_another_device_may_be_fitted_for_a_profile():
    result = fit_device(whole_world(), load_device("mi9"), "other")
    assert {item.fit.core_set for item in result} == {"1large", "1med", "2med"}
    assert all("device other" in item.fit.source for item in result)


@pytest.mark.parametrize(
    ("count", "device", "measured", "error", "message"),
    [
        (20, "s10", (), UnknownNameError, "device"),
        (8, DEVICE, (), StretchError, "8 networks of 5 families"),
        (20, "host", (DEVICE,), StretchError, "core sets"),
    ],
)
def test_missing_or_too_few_measurements_are_refused(count, device, measured, error, message):
    with pytest.raises(error, match=message):
        fit_device(whole_world(count=count), load_device(device), *measured)


def test_precision_with_too_few_measurements_is_omitted_with_a_report_or_refused_as_the_only_one():
    world = whole_world()
    few = [structs.replace(row, precision="int8") for row in world.latencies[:3]]
    # a backend with fitted kernels is not fitted from times of whole networks
    whole = [structs.replace(row, processor="gpu", core_set="all", precision="fp16") for row in world.latencies]
    rows: list[str] = []
    result = fit_device(replace(world, latencies=[*world.latencies, *few, *whole]), load_device(DEVICE), report=rows.append)
    assert {(item.fit.processor, item.fit.precision) for item in result} == {("cpu", "fp32")}
    assert [
        any(message in row for row in rows) for message in ("gpu in fp16 has times of whole networks", "int8 has times of 3 networks")
    ] == [True] * 2
    assert len(rows) == 2
    with pytest.raises(StretchError, match="those of kernels"):
        fit_device(replace(world, latencies=whole), load_device(DEVICE))


def test_interval_holds_a_new_ratio_of_the_same_distribution_as_often_as_stated():
    """Exchangeable ratios: the guarantee of conformal prediction, checked on 4 000 draws."""
    inside = 0
    for ratios in np.exp(0.3 * np.random.default_rng(0).standard_normal((4000, 80))):
        low, high = interval_ends(list(ratios[:-1]))
        inside += low <= ratios[-1] <= high
    # Three standard errors of a share of 4 000 are 1.4 %; rounding to whole ranks adds up to 2.5 %.
    assert 0.885 <= inside / 4000 <= 0.94


def test_coverage_is_counted_without_the_family():
    families = {name: name[0] for name in ("a1", "a2", "b1", "b2")}
    # Family b is outside the interval that family a gives, and a outside that of b.
    assert family_coverage(dict(zip(families, (1.0, 1.1, 3.0, 3.1), strict=True)), families) == pytest.approx(0.5)
    assert family_coverage(dict.fromkeys(families, 1.0), families) == 1.0
