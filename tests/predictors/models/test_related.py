"""Times of a processor that nobody measured, from those of its relatives."""

import numpy as np
import pytest

from predictors.devices import load_device
from predictors.fits import Interval, KernelGroup, LeftOut, Prior, Relative
from predictors.fusion import KernelCost
from predictors.models.base import KernelTime, Times
from predictors.models.fitted import FittedModel
from predictors.models.related import Ratios, RelatedModel
from tests.predictors.fits.examples import fit

BIG, MED = load_device("mi9").processor("cpu[1large]"), load_device("mi9").processor("cpu[3med]")
COST = KernelCost("conv1x1", 16, 16, 1, 1, 100, 1600, 1600, 256)


def prior(scale=1.0, relatives=1):
    at = Relative("mi9", "cpu", "1large", "fp32")
    return Prior("cpu", "3med", "fp32", (at,) * relatives, scale, Interval(0.9, 0.5, 2.0, "m"), LeftOut(3, 9, 0.5, 0.3, 0.9))


def test_each_part_is_scaled_by_its_own_ratio():
    times = Times(*(np.array([ms]) for ms in (6.0, 1.0, 3.0, 2.0)))
    assert Ratios(2.0, 3.0).of(times).kernels("relatives") == [KernelTime(13.0, 1.0, 6.0, 6.0, "relatives")]


def test_ratios_are_those_of_what_the_profiles_specify():
    ratios = Ratios.between(BIG, MED, "fp32")
    peak = [p.cores.peak_gops["fp32"].value * p.cores.scaling.value for p in (BIG, MED)]
    assert ratios.compute == pytest.approx(peak[0] / peak[1])
    assert ratios.memory == pytest.approx(BIG.cores.bandwidth_gbs.value / MED.cores.bandwidth_gbs.value)


def test_times_of_several_relatives_are_averaged_and_scaled():
    slow, fast = (FittedModel(fit({"conv1x1": KernelGroup({"launch": ms})}), BIG) for ms in (3.0, 1.0))
    one = Ratios(1.0, 1.0)
    [found] = RelatedModel(prior(1.5, 2), [(slow, one), (fast, one)]).times([COST])
    assert found.ms == pytest.approx(1.5 * 2.0)
