"""Planners of memory, and lifetimes as a partial order."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.memory_planning.run import graph_lifetimes, lower_bound
from predictors.fusion import fuse
from predictors.graph import Op, OpGraph
from scheduler.memory import Lifetime, Lifetimes, MemoryPlan, plan_memory, planners
from scheduler.memory.plan import plan_flow, plan_greedy, plan_offset
from tests.effort import examples

TWO = Lifetimes([Lifetime("a", 4, (0, 1)), Lifetime("b", 4, (1, 2))])


def test_plan_that_lets_live_tensors_meet_or_leaves_its_arena_is_found_out():
    assert "`a` and `b` overlap" in MemoryPlan({"a": 0, "b": 0}, {"a": 0, "b": 3}, (7,)).problem(TWO)
    assert "`b` leaves its arena" in MemoryPlan({"a": 0, "b": 0}, {"a": 0, "b": 4}, (7,)).problem(TWO)


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
def test_what_is_no_order_is_refused(tensors, after, message):
    with pytest.raises(ValueError, match=message):
        Lifetimes(tensors, after)


def conv(name, read, subgraph):
    attrs = {"out_channels": 8, "kernel": (3, 3), "stride": (1, 1), "padding": (1, 1, 1, 1), "groups": 1, "bias": True}
    return Op(name, "conv", (read,), attrs, tags={"subgraph": subgraph})


@pytest.fixture(scope="module")
def branched():
    """A stem, two branches of two convolutions, a join, a head; 8 channels of 4 × 4 floats are 512 bytes."""
    ops = [
        Op("x", "input", (), {"shape": (1, 6, 4, 4)}),
        conv("stem", "x", "stem"),
        conv("a1", "stem", "a"),
        conv("a2", "a1", "a"),
        conv("b1", "stem", "b"),
        conv("b2", "b1", "b"),
        Op("join", "concat", ("a2", "b2"), {"axis": 1}, tags={"subgraph": "join"}),
        Op("same", "identity", ("join",), tags={"subgraph": "join"}),
        conv("head", "same", "head"),
    ]
    return OpGraph.build("net", ops, "head")


def names(lifetimes):
    return {tensor.name: i for i, tensor in enumerate(lifetimes.tensors)}


def test_one_after_the_other_a_branch_reuses_what_the_other_needed(branched):
    built = graph_lifetimes(branched, fuse(branched, "tflite_gpu"))
    at = names(built)
    assert set(at) == {"stem", "a1", "a2", "b1", "b2", "join"}
    assert built.before[at["a1"], at["b1"]]
    assert {tensor.bytes for tensor in built.tensors} == {512, 1024}
    # a tensor that only changes its name is read through
    assert len(built.tensors[at["join"]].steps) == 2


def test_side_by_side_branches_share_nothing(branched):
    built = graph_lifetimes(branched, fuse(branched, "tflite_gpu"), concurrent=True)
    at = names(built)
    assert built.overlap[at["a1"], at["b1"]]
    assert built.overlap[at["a1"], at["b2"]]
    assert built.before[at["stem"], at["join"]]
    sequential = graph_lifetimes(branched, fuse(branched, "tflite_gpu"))
    assert plan_memory(built).total_bytes >= plan_memory(sequential).total_bytes


def test_channels_are_stored_in_whole_slices(branched):
    half = graph_lifetimes(branched, fuse(branched, "tflite_gpu"), item_bytes=2, lanes=32)
    assert {tensor.bytes for tensor in half.tensors} == {32 * 16 * 2}


def test_the_largest_tensor_takes_over_the_object_that_the_paper_names(memory_example):
    plan = plan_flow(memory_example)
    assert plan.arenas["4"] == plan.arenas["0"]
    assert sorted(plan.sizes) == [4, 8, 8, 64]


def test_tensors_reuse_the_objects_that_the_paper_names(memory_example):
    plan = plan_greedy(memory_example)
    assert plan.arenas["2"] == plan.arenas["0"]
    assert plan.arenas["4"] == plan.arenas["1"]
    assert plan.sizes == (32, 64, 8)


def test_tensor_fits_between_two_that_live_longer():
    lifetimes = Lifetimes([Lifetime("a", 8, (0, 3)), Lifetime("b", 4, (0, 1)), Lifetime("c", 3, (2, 3)), Lifetime("d", 1, (1, 3))])
    plan = plan_offset(lifetimes)
    assert plan.problem(lifetimes) is None
    assert plan.total_bytes == lower_bound(lifetimes)


def test_alignment_below_one_is_refused(memory_example):
    with pytest.raises(ValueError, match="above zero"):
        plan_offset(memory_example, 0)


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
    assert lower_bound(made) <= plan.total_bytes <= sum(t.bytes for t in made.tensors) + alignment * len(made.tensors)


@settings(max_examples=examples(40))
@given(made=lifetimes(most=7))
def test_lower_bound_is_the_heaviest_set_of_overlapping_tensors(made):
    """Oracle: every set of tensors, tried."""
    overlap, best = made.overlap, 0
    for size in range(1, len(made.tensors) + 1):
        for chosen in itertools.combinations(range(len(made.tensors)), size):
            if all(overlap[a, b] for a, b in itertools.combinations(chosen, 2)):
                best = max(best, sum(made.tensors[i].bytes for i in chosen))
    assert lower_bound(made) == best


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
