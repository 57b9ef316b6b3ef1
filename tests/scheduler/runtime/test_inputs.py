import numpy as np
import pytest

from predictors.errors import UsageError
from scheduler.runtime.inputs import as_array, check_input

LIKE = np.zeros((1, 3, 4, 5), np.float32)


def test_numpy_array_is_handed_on_as_it_is():
    assert as_array(LIKE) is LIKE


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


def test_another_shape_gets_no_hint_of_layouts():
    with pytest.raises(UsageError, match="has shape") as refused:
        check_input(np.zeros((1, 4, 4, 5), np.float32), LIKE)
    assert refused.value.hint is None
