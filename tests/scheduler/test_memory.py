import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.memory import Lifetime, Lifetimes, MemoryPlan, plan_memory, planners
from scheduler.memory.plan import plan_flow, plan_greedy, plan_offset
from tests.effort import examples

#: Tensors of paper 000: sizes 32, 8, 4, 8, 64 on edges 0→1, 1→{2, 3}, {2, 3}→4, 4→5.
USES = {"0": (32, (0, 1)), "1": (8, (1, 2, 3)), "2": (4, (2, 4)), "3": (8, (3, 4)), "4": (64, (4, 5))}
FIGURE_5 = Lifetimes([Lifetime(name, *use) for name, use in USES.items()])


def test_overlap_of_live_tensors_and_a_tensor_outside_its_arena_are_problems_and_gaps_are_used():
    two = Lifetimes([Lifetime("a", 4, (0, 1)), Lifetime("b", 4, (1, 2))])
    for offset, problem in ((3, "`a` and `b` overlap"), (4, "`b` leaves its arena")):
        assert problem in MemoryPlan({"a": 0, "b": 0}, {"a": 0, "b": offset}, (7,)).problem(two)
    lifetimes = Lifetimes([Lifetime("a", 8, (0, 3)), Lifetime("b", 4, (0, 1)), Lifetime("c", 3, (2, 3)), Lifetime("d", 1, (1, 3))])
    plan = plan_offset(lifetimes)
    assert (plan.problem(lifetimes), plan.total_bytes) == (None, 8 + 4 + 1)


@pytest.mark.parametrize(
    ("tensors", "after", "message"),
    [
        ([Lifetime("a", 1, (0,)), Lifetime("a", 1, (0,))], None, "same name"),
        ([Lifetime("a", 0, (0,))], None, "0 bytes"),
        ([Lifetime("a", 1, ())], None, "0 steps"),
        ([Lifetime("a", 1, (2,))], [(), ()], "used by step 2"),
        ([Lifetime("a", 1, (0,))], [(1,), ()], "does not come before"),
    ],
)
def test_invalid_lifetimes_and_orders_are_refused(tensors, after, message):
    with pytest.raises(ValueError, match=message):
        Lifetimes(tensors, after)


def test_tensors_reuse_the_objects_that_the_paper_names():
    flow, greedy = plan_flow(FIGURE_5), plan_greedy(FIGURE_5)
    assert (flow.arenas["4"], sorted(flow.sizes)) == (flow.arenas["0"], [4, 8, 8, 64])
    assert (greedy.arenas["2"], greedy.arenas["4"], greedy.sizes) == (greedy.arenas["0"], greedy.arenas["1"], (32, 64, 8))
    with pytest.raises(ValueError, match="above zero"):
        plan_offset(FIGURE_5, 0)


@st.composite
def lifetimes(draw, most=9):
    """Lifetimes of tensors in a random graph, where each step comes after some earlier steps."""
    count = draw(st.integers(1, most))
    after = [draw(st.lists(st.integers(0, step - 1), max_size=2, unique=True)) if step else [] for step in range(count)]
    tensors = []
    for i in range(draw(st.integers(1, most))):
        writer = draw(st.integers(0, count - 1))
        readers = draw(st.lists(st.integers(writer, count - 1), max_size=2))
        tensors.append(Lifetime(f"t{i}", draw(st.integers(1, 40)), (writer, *readers)))
    return Lifetimes(sorted(tensors, key=lambda t: t.steps[0]), after)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(planners))
@settings(max_examples=examples(60))
@given(drawn=lifetimes(), alignment=st.sampled_from([1, 4, 16]))
def test_tensors_that_may_be_alive_together_never_share_a_byte(name, drawn, alignment):
    plan = plan_memory(drawn, name, alignment)
    assert plan.problem(drawn) is None
    assert all(offset % alignment == 0 for offset in plan.offsets.values())
    assert plan.total_bytes <= sum(t.bytes for t in drawn.tensors) + alignment * len(drawn.tensors)


@settings(max_examples=examples(40))
@given(drawn=lifetimes(most=6))
def test_tensors_overlap_if_any_order_of_steps_has_both_alive(drawn):
    """Oracle: every sequential order of the steps."""
    after = drawn._after
    alive_together = np.zeros((len(drawn.tensors),) * 2, bool)
    for order in itertools.permutations(range(len(after))):
        position = {step: i for i, step in enumerate(order)}
        if any(position[other] > position[step] for step, needed in enumerate(after) for other in needed):
            continue
        spans = [(min(position[s] for s in t.steps), max(position[s] for s in t.steps)) for t in drawn.tensors]
        for i, j in itertools.product(range(len(spans)), repeat=2):
            alive_together[i, j] |= spans[i][0] <= spans[j][1] and spans[j][0] <= spans[i][1]
    assert not (alive_together & ~drawn.overlap).any()


@pytest.mark.parametrize(("name", "total"), [("naive", 116), ("greedy", 104), ("flow", 84), ("offset", 76)])
def test_example_of_the_paper_needs_its_total_bytes(name, total):
    assert plan_memory(FIGURE_5, name, alignment=1).total_bytes == total
    assert plan_memory(Lifetimes([]), name).total_bytes == 0
