import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import UsageError
from scheduler.bundle.preprocessing import IMAGENET, Preprocessing
from stretch.cli.pictures import PictureRequest

OWN = Preprocessing((0.1, 0.2, 0.3), (0.4, 0.5, 0.6), 0.9, interpolation="bicubic", channels="bgr")


def test_what_is_stated_counts_and_imagenets_where_nothing_is():
    assert PictureRequest().over(OWN) == OWN
    assert PictureRequest().over(None) == IMAGENET


def test_what_is_asked_for_takes_its_place_and_leaves_the_rest():
    found = PictureRequest(mean="1,2,3", size=40).over(OWN)
    assert found == Preprocessing((1, 2, 3), OWN.std, 0.9, 40, "bicubic", channels="bgr")
    assert PictureRequest(crop=0.5, std="1,1,2").over(found) == Preprocessing((1, 2, 3), (1, 1, 2), 0.5, None, "bicubic", channels="bgr")


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"std": "1,inf,1"}, "--std 1,inf,1 is not three numbers"),
        ({"std": "1,0,1"}, "--std 1,0,1 is no standard deviation"),
        ({"size": 3, "crop": 0.5}, "--size and --crop both say"),
        ({"crop": 0.0}, "--crop 0 keeps nothing"),
        ({"size": 10**9}, "--size is out of range"),
        ({"mean": "1e300,0,0"}, "--mean is out of range"),
    ],
)
def test_values_out_of_range_are_usage_errors_with_the_flag(asked, told):
    with pytest.raises(UsageError, match=told):
        PictureRequest(**asked).over(OWN)


@given(crop=st.floats(allow_nan=True), text=st.text(alphabet="0123456789.,e-nai", max_size=12))
def test_any_value_is_taken_or_refused_in_a_sentence(crop, text):
    for asked in ({"crop": crop}, {"mean": text}, {"std": text}):
        try:
            found = PictureRequest(**asked).over(OWN)
        except UsageError:
            continue
        assert 0 < found.crop <= 1
        assert min(found.std) > 0
