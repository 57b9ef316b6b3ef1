import msgspec
import pytest

from predictors.errors import StretchError
from scheduler.bundle.load import load_bundle

RUN = {
    "value": 0.8, "low": 0.7, "high": 0.9, "top5_overlap": None, "error": 0.2, "images": 20,
    "precisions": {"cpu": ["int8"], "gpu": ["fp16", "fp32"]}, "delegates": {"cpu": "cpu", "gpu": "opencl"},
}  # fmt: skip
MEASURED = {
    "value": 0.9, "low": 0.8, "high": 0.95, "top5_overlap": None, "error": 0.1, "images": 40,
    "segments": [{"segment": "s1", "value": None, "error": None}],
}  # fmt: skip


def test_bundle_carries_what_was_measured(bundles, bundle_dir):
    assert load_bundle(bundle_dir).manifest.agreement is None
    bundles.edit(bundle_dir, lambda m: m.update(agreement=MEASURED))
    found = load_bundle(bundle_dir).manifest.agreement
    assert msgspec.to_builtins(found) == MEASURED | {
        "precision": "fp32",
        "source": "measured",
        "classes": None,
        "segments": tuple(MEASURED["segments"]),
        "bundle": None,
    }


@pytest.mark.parametrize("wrong", [{"value": -1}, {"images": 0}, {"precisions": {"cpu": ["int7"]}}, {"source": "guessed"}, {"more": 1}])
def test_files_that_ran_in_no_known_precision_are_refused(bundles, bundle_dir, wrong):
    bundles.edit(bundle_dir, lambda m: m.update(agreement=MEASURED | {"bundle": RUN | wrong}))
    with pytest.raises(StretchError, match="agreement"):
        load_bundle(bundle_dir)


@pytest.mark.parametrize("wrong", [{"value": 1.5}, {"low": -0.1}, {"images": 0}, {"error": "nan"}, {"source": "guessed"}, {"more": 1}])
def test_shares_that_are_none_are_refused(bundles, bundle_dir, wrong):
    bundles.edit(bundle_dir, lambda m: m.update(agreement=MEASURED | wrong))
    with pytest.raises(StretchError, match="agreement"):
        load_bundle(bundle_dir)
