"""What a caller hands in and what it gets back."""

from math import inf, nan

import numpy as np
import pytest

from predictors.errors import UsageError
from scheduler.placement.place import Placement
from scheduler.runtime.inputs import as_array, as_arrays, check_input, check_inputs, checked_priority, deadline_at, plain
from scheduler.runtime.sequential import TOLERANCES, distance
from scheduler.runtime.threads import HangError, step_failure

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
    ("x", "message"),
    [
        (LIKE, "one array was given"),
        ({"a": LIKE}, "`b` is missing"),
        ({"a": LIKE, "b": LIKE, "c": LIKE}, "no input `c`"),
        ({"a": LIKE, "b": 1}, "int"),
    ],
)
def test_inputs_that_are_not_those_of_the_model_are_refused(x, message):
    with pytest.raises(UsageError, match=message):
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


def test_equal_tensors_are_at_no_distance():
    x = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
    assert [distance(x, x, precision) for precision in TOLERANCES] == [0, 0, 0]


def test_fp32_is_judged_by_its_largest_difference_and_less_by_root_mean_square():
    want = np.full(100, 2, np.float32)
    got = want.copy()
    got[7] += 1
    assert distance(got, want, "fp32") == pytest.approx(0.5)
    assert distance(got, want, "int8") == pytest.approx(1 / np.linalg.norm(want))


@pytest.mark.parametrize("precision", TOLERANCES)
def test_what_is_no_number_is_within_no_tolerance(precision):
    want = np.ones(4, np.float32)
    got = np.array([1, np.nan, 1, 1], np.float32)
    assert not distance(got, want, precision) <= TOLERANCES[precision]


GPU = Placement("gpu", "cpu", (1,), "cpu1", "blocking", True, "")


def test_failed_subgraph_is_named_with_its_processor_and_first_line():
    error = step_failure("s1.gpu", GPU, RuntimeError("no memory\nat line 3"))
    assert error.message == "subgraph `s1.gpu` failed on processor `gpu` (delegate `cpu`): no memory"


def test_failed_join_is_named():
    assert step_failure("s1.join", None, ValueError("bad")).message == "join `s1.join` failed: bad"


def test_hang_is_named_with_where_it_ran_and_how_long():
    error = HangError.of("s1.gpu", GPU, 2.5)
    assert error.message == "subgraph `s1.gpu` did not end within 2.5 s on processor `gpu` (delegate `cpu`)"
    assert "--map gpu=cpu" in error.hint


@pytest.mark.parametrize("deadline", [0, -1, nan, inf])
def test_deadline_that_cannot_be_kept_is_refused(deadline):
    with pytest.raises(UsageError, match="deadline"):
        deadline_at(0.0, deadline)


def test_deadline_counts_from_now_and_none_is_never():
    assert deadline_at(2.0, 500) == 2.5
    assert deadline_at(2.0, None) == inf


@pytest.mark.parametrize("priority", [-101, 101])
def test_priority_out_of_range_is_refused(priority):
    with pytest.raises(UsageError, match="no priority"):
        checked_priority(priority)


@pytest.mark.parametrize("priority", [-100, 0, 100])
def test_priority_in_range_is_itself(priority):
    assert checked_priority(priority) == priority
