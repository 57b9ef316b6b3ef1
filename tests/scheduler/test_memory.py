"""What holds for every planner."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.memory import Lifetime, Lifetimes, plan_memory, planners
from tests.effort import examples

NAMES = list(planners)


@st.composite
def lifetimes(draw, most=9):
    """Tensors of a random graph of steps, each step after some of those before it."""
    count = draw(st.integers(1, most))
    after = [draw(st.lists(st.integers(0, step - 1), max_size=2, unique=True)) if step else [] for step in range(count)]
    tensors = []
    for i in range(draw(st.integers(1, most))):
        writer = draw(st.integers(0, count - 1))
        readers = draw(st.lists(st.integers(writer, count - 1), max_size=2))
        tensors.append(Lifetime(f"t{i}", draw(st.integers(1, 40)), (writer, *readers)))
    return Lifetimes(sorted(tensors, key=lambda t: t.steps[0]), after)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=examples(60))
@given(made=lifetimes(), alignment=st.sampled_from([1, 4, 16]))
def test_tensors_that_may_be_alive_together_never_share_a_byte(name, made, alignment):
    plan = plan_memory(made, name, alignment)
    assert plan.problem(made) is None
    assert all(offset % alignment == 0 for offset in plan.offsets.values())
    assert made.lower_bound <= plan.total_bytes <= sum(t.bytes for t in made.tensors) + alignment * len(made.tensors)


@settings(max_examples=examples(40))
@given(made=lifetimes(most=7))
def test_lower_bound_is_the_heaviest_set_of_overlapping_tensors(made):
    """Oracle: every set of tensors, tried."""
    overlap, best = made.overlap, 0
    for size in range(1, len(made.tensors) + 1):
        for chosen in itertools.combinations(range(len(made.tensors)), size):
            if all(overlap[a, b] for a, b in itertools.combinations(chosen, 2)):
                best = max(best, sum(made.tensors[i].bytes for i in chosen))
    assert made.lower_bound == best


@settings(max_examples=examples(40))
@given(made=lifetimes(most=6))
def test_tensor_is_before_another_only_if_no_schedule_lets_them_meet(made):
    """Oracle: every order in which the steps may run one at a time."""
    after = made._after
    met = np.zeros((len(made.tensors),) * 2, bool)
    for order in itertools.permutations(range(len(after))):
        position = {step: i for i, step in enumerate(order)}
        if any(position[other] > position[step] for step, needed in enumerate(after) for other in needed):
            continue
        spans = [(min(position[s] for s in t.steps), max(position[s] for s in t.steps)) for t in made.tensors]
        for i, j in itertools.product(range(len(spans)), repeat=2):
            met[i, j] |= spans[i][0] <= spans[j][1] and spans[j][0] <= spans[i][1]
    assert not (met & ~made.overlap).any()


@pytest.mark.parametrize(("name", "total"), [("naive", 116), ("greedy", 104), ("flow", 84), ("offset", 76)])
def test_example_of_the_paper_gives_its_totals(memory_example, name, total):
    assert plan_memory(memory_example, name, alignment=1).total_bytes == total


@pytest.mark.parametrize("name", NAMES)
def test_no_tensors_need_no_memory(name):
    assert plan_memory(Lifetimes([]), name).total_bytes == 0
