import numpy as np
import pytest

from predictors.errors import UsageError
from scheduler.runtime.inputs import as_array, as_arrays, check_input, check_inputs, plain

LIKE = np.zeros((1, 3, 4, 5), np.float32)


@pytest.mark.torch
def test_torch_tensor_shares_its_memory():
    import torch

    tensor = torch.zeros(1, 3, 4, 5)
    array = as_array(tensor)
    tensor += 1
    assert isinstance(array, np.ndarray)
    assert (array == 1).all()


@pytest.mark.torch
def test_torch_tensor_that_needs_a_gradient_is_refused_with_the_way_out():
    import torch

    with pytest.raises(UsageError, match="Tensor, cannot be read") as refused:
        as_array(torch.zeros(1, requires_grad=True))
    assert "detach" in refused.value.hint


@pytest.mark.parametrize("x", [[1.0], None, "x", 3])
def test_what_is_no_array_is_refused(x):
    with pytest.raises(UsageError, match=f"is a {type(x).__name__}"):
        as_array(x)


def test_channels_last_is_recognised():
    with pytest.raises(UsageError, match="has shape") as refused:
        check_input(np.zeros((1, 4, 5, 3), np.float32), LIKE)
    assert "NHWC" in refused.value.hint


def test_inputs_come_in_the_order_of_the_model():
    other = LIKE + 1
    assert list(as_arrays({"b": other, "a": LIKE}, ("a", "b"))) == ["a", "b"]


@pytest.mark.parametrize(
    ("x", "told"),
    [
        (LIKE, "one array was given"),
        ({"a": LIKE}, "`b` is missing"),
        ({"a": LIKE, "b": LIKE, "c": LIKE}, "no input `c`"),
        ({"a": LIKE, "b": 1}, "int"),
    ],
)
def test_inputs_that_are_not_those_of_the_model_are_refused(x, told):
    with pytest.raises(UsageError, match=told):
        as_arrays(x, ("a", "b"))


def test_wrong_input_is_named_where_there_are_several():
    wrong = np.zeros((1, 3, 4, 6), np.float32)
    with pytest.raises(UsageError, match="the input `b` has shape"):
        check_inputs({"a": LIKE, "b": wrong}, {"a": LIKE, "b": LIKE})
    with pytest.raises(UsageError, match="the input has shape"):
        check_inputs({"b": wrong}, {"b": LIKE})


def test_values_by_name_are_plain_where_there_is_one():
    assert plain({"y": LIKE}) is LIKE
    assert plain({"y": LIKE, "z": LIKE}).keys() == {"y", "z"}
