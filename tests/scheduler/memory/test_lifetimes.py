import pytest

from scheduler.memory import Lifetime, Lifetimes, chained, plan_memory


def branch(size):
    """A chain of two steps: one tensor between them, one read by the next part."""
    return Lifetimes([Lifetime("a", size, (0, 1)), Lifetime("b", size, (1,))])


def test_steps_in_a_row_compare_as_intervals():
    made = Lifetimes([Lifetime("a", 1, (0, 1)), Lifetime("b", 1, (1, 2)), Lifetime("c", 1, (2, 3))])
    assert made.before.tolist() == [[False, False, True], [False, False, False], [False, False, False]]


def test_branches_that_may_run_at_once_share_nothing_and_what_follows_them_shares_with_both():
    made = chained([branch(10), branch(10), branch(15)], {2: (0, 1)})
    names = {tensor.name: i for i, tensor in enumerate(made.tensors)}
    assert made.overlap[names["0:a"], names["1:a"]]
    assert made.before[names["0:a"], names["2:a"]]
    assert made.before[names["1:b"], names["2:a"]]
    plan = plan_memory(made, "offset", 1)
    assert plan.problem(made) is None
    assert plan.total_bytes == made.lower_bound == 40


def test_one_after_the_other_they_share_everything():
    assert plan_memory(chained([branch(10), branch(10)], {1: (0,)}), "offset", 1).total_bytes == 20


@pytest.mark.parametrize(
    ("tensors", "after", "told"),
    [
        ([Lifetime("a", 1, (0,)), Lifetime("a", 1, (0,))], None, "same name"),
        ([Lifetime("a", 0, (0,))], None, "0 bytes"),
        ([Lifetime("a", 1, ())], None, "0 steps"),
        ([Lifetime("a", 1, (2,))], [(), ()], "used by step 2"),
        ([Lifetime("a", 1, (0,))], [(1,), ()], "does not come before"),
    ],
)
def test_what_is_no_order_is_refused(tensors, after, told):
    with pytest.raises(ValueError, match=told):
        Lifetimes(tensors, after)


def test_part_cannot_follow_a_later_one():
    with pytest.raises(ValueError, match="does not come before"):
        chained([branch(1), branch(1)], {0: (1,)})
