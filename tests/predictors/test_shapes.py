import pytest

from predictors.shapes import integer, ints, number, rank4


@pytest.mark.parametrize(
    ("read", "attrs", "message"),
    [(ints, {"a": 3}, "not a list of numbers"), (integer, {"a": (3,)}, "not a whole number"), (number, {"a": "x"}, "not a number")],
)
def test_attribute_of_the_wrong_type_is_refused(read, attrs, message):
    with pytest.raises(TypeError, match=message):
        read(attrs, "a")


def test_tensor_of_another_rank_is_refused():
    assert rank4((1, 2, 3, 4)) == (1, 2, 3, 4)
    with pytest.raises(ValueError, match="N×C×H×W"):
        rank4((1, 2))
