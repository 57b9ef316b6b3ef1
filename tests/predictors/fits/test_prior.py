"""What a prior may say."""

import msgspec
import pytest

from predictors.fits import Prior

GOOD = {
    "processor": "gpu",
    "core_set": "all",
    "precision": "fp16",
    "relatives": [{"device": "s10", "processor": "gpu", "core_set": "all", "precision": "fp16"}],
    "scale": 1.0,
    "interval": {"coverage": 0.9, "low": 0.5, "high": 2.0, "method": "m"},
    "left_out": {"chips": 4, "networks": 80, "within_20": 0.5, "mape": 0.4, "coverage": 0.9},
}


def test_prior_is_read():
    assert msgspec.convert(GOOD, Prior).relatives[0].device == "s10"


@pytest.mark.parametrize("change", [{"relatives": []}, {"scale": 0.0}, {"more": 1}, {"left_out": {"chips": -1}}])
def test_prior_that_says_nothing_true_is_refused(change):
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(GOOD | change, Prior)
