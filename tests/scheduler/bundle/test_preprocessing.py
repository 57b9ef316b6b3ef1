import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import StretchError, UsageError
from scheduler.bundle.load import load_bundle
from scheduler.bundle.preprocessing import IMAGENET, Preprocessing, requested_preprocessing
from scheduler.checks.verify import verify_bundle
from tests.scheduler.bundles import two_branches

#: Up to ten times as long as wide: longer pictures may be too large after the resize.
SIDES = st.integers(200, 2000)


@given(width=SIDES, height=SIDES, wide=st.integers(1, 400), high=st.integers(1, 400), crop=st.floats(0.5, 1), squash=st.booleans())
def test_resized_picture_always_holds_the_crop(width, height, wide, high, crop, squash):
    read = msgspec.structs.replace(IMAGENET, crop=crop, squash=squash)
    found = read.scaled(width, height, (wide, high))
    assert found[0] >= wide
    assert found[1] >= high


@pytest.mark.parametrize(
    ("read", "picture", "resized"),
    [
        (Preprocessing(), (500, 400), (320, 256)),
        (Preprocessing(crop=224 / 232), (400, 500), (232, 290)),
        (Preprocessing(crop=224 / 248, squash=True), (500, 400), (248, 248)),
        (Preprocessing(size=300), (500, 400), (375, 300)),
    ],
)
def test_sizes_are_those_that_are_known(read, picture, resized):
    assert read.scaled(*picture, (224, 224)) == resized


def test_size_below_the_input_is_refused():
    with pytest.raises(StretchError, match="resized to a shorter side of 200 is smaller than what the model reads"):
        Preprocessing(size=200).scaled(500, 400, (224, 224))


@pytest.mark.parametrize("read", [Preprocessing(size=16384), Preprocessing(crop=0.01)])
def test_picture_that_would_fill_the_memory_is_refused(read):
    with pytest.raises(StretchError, match="which is too large"):
        read.scaled(20_000, 1_000, (224, 224))


def stated(folder, value):
    """A bundle that states a preprocessing."""
    bundle = two_branches(folder / "bundle")
    path = bundle / "bundle.json"
    data = json.loads(path.read_text())
    data["model"]["preprocessing"] = value
    path.write_text(json.dumps(data))
    return bundle


def test_bundle_carries_it_and_an_older_one_without_it_loads(tmp_path):
    read = Preprocessing((0.5, 0.4, 0.3), (0.1, 0.2, 0.3), 0.9, interpolation="bicubic", channels="bgr", range=255)
    bundle = stated(tmp_path, msgspec.to_builtins(read))
    assert load_bundle(bundle).manifest.model.preprocessing == read
    assert verify_bundle(bundle).ok
    older = two_branches(tmp_path / "older")
    assert load_bundle(older).manifest.model.preprocessing is None


@pytest.mark.parametrize(
    "value",
    [
        {"mean": [0.5, 0.5]},
        {"std": [0.5, 0, 0.5]},
        {"std": [0.5, -1, 0.5]},
        {"mean": [0.5, 1e300, 0.5]},
        {"crop": 0},
        {"crop": 1.5},
        {"size": 0},
        {"size": 10**9},
        {"interpolation": "nearly"},
        {"channels": "yuv"},
        {"range": 1023},
        {"crops": 1},
        "imagenet",
    ],
)
def test_bundle_with_values_out_of_range_is_refused_in_one_sentence(tmp_path, value):
    with pytest.raises(StretchError, match="preprocessing"):
        load_bundle(stated(tmp_path, value))


def test_size_that_no_picture_can_be_cropped_from_is_a_problem_of_the_bundle(tmp_path):
    [problem] = verify_bundle(stated(tmp_path, {"size": 3})).problems
    assert "`model.preprocessing` resizes pictures to 3, the model reads 8×8" in problem


OWN = Preprocessing((0.1, 0.2, 0.3), (0.4, 0.5, 0.6), 0.9, size=40, interpolation="bicubic", channels="bgr")


def test_values_that_are_asked_for_take_the_place_of_those_stated():
    shape = (1, 3, 32, 32)
    assert requested_preprocessing(OWN, None, shape) == OWN
    assert requested_preprocessing(OWN, IMAGENET, shape) == IMAGENET
    assert requested_preprocessing(OWN, {"mean": [1, 2, 3]}, shape) == msgspec.structs.replace(OWN, mean=(1, 2, 3))
    assert requested_preprocessing(OWN, {"crop": 0.5}, shape) == msgspec.structs.replace(OWN, crop=0.5, size=None)
    assert requested_preprocessing(OWN, {"crop": 0.5, "size": 64}, shape).size == 64


@pytest.mark.parametrize(
    ("asked", "shape", "told"),
    [
        ({"men": [0, 0, 0]}, (1, 3, 8, 8), "cannot be used: .*`men`"),
        ({"std": [0, 1, 1]}, (1, 3, 8, 8), r"cannot be used: .*\$\.std"),
        (Preprocessing(std=(0, 1, 1)), (1, 3, 8, 8), r"cannot be used: .*\$\.std"),
        ("bicubic", (1, 3, 8, 8), "cannot be used"),
        (3, (1, 3, 8, 8), "cannot be used"),
        ({"size": 7}, (1, 3, 8, 8), "resizes pictures to 7, the model reads 8×8"),
        ({"crop": 0.5}, (1, 1, 8, 8), r"is one of colour pictures, the model reads \[1, 1, 8, 8\]"),
    ],
)
def test_what_cannot_be_asked_for_is_a_usage_error(asked, shape, told):
    with pytest.raises(UsageError, match=told):
        requested_preprocessing(IMAGENET, asked, shape)
