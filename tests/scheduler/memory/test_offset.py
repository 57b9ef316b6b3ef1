import pytest

from scheduler.memory import Lifetime, Lifetimes
from scheduler.memory.offset import plan_offset


def test_tensor_fits_between_two_that_live_longer():
    made = Lifetimes([Lifetime("a", 8, (0, 3)), Lifetime("b", 4, (0, 1)), Lifetime("c", 3, (2, 3)), Lifetime("d", 1, (1, 3))])
    plan = plan_offset(made)
    assert plan.problem(made) is None
    assert plan.total_bytes == made.lower_bound


def test_alignment_below_one_is_refused(memory_example):
    with pytest.raises(ValueError, match="above zero"):
        plan_offset(memory_example, 0)
