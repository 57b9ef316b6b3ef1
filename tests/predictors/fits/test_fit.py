"""What a fit may say: nothing that could not be evaluated."""

import msgspec
import pytest

from predictors.fits import Correction, Interval, KernelGroup, Trees


@pytest.mark.parametrize(
    "broken",
    [
        {"left": (0, 1, 2)},  # its own child, but not a leaf: it would be walked for ever
        {"left": (7, 1, 2)},
        {"feature": (3, 0, 0)},
        {"value": (0.0,)},
    ],
)
def test_trees_that_cannot_be_walked_are_refused(broken):
    good = {
        "features": ("taps",),
        "roots": (0,),
        "feature": (0, 0, 0),
        "threshold": (1.0, 0.0, 0.0),
        "left": (1, 1, 2),
        "right": (2, 1, 2),
        "value": (0.0, 0.5, -0.25),
        "base": 0.0,
        "bound": 1.0,
    }
    msgspec.convert(good, Trees)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(good | broken, Trees)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (KernelGroup, {"terms": {"macs": -1.0}}),
        (KernelGroup, {"terms": {"macs": 1.0}, "more": 1}),
        (Correction, {"scale": 0.0}),
        (Interval, {"coverage": 0.9, "low": 1.1, "high": 1.2, "method": "m"}),
        (Interval, {"coverage": 1.0, "low": 0.9, "high": 1.2, "method": "m"}),
    ],
)
def test_numbers_that_no_time_could_have_are_refused(kind, value):
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(value, kind)
