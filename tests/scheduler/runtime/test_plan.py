import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import StretchError
from scheduler.bundle.load import load_bundle
from scheduler.runtime.plan import PlannedJoin, PlannedSubgraph, make_plan, plan_of


def test_plan_knows_order_readers_and_how_many_inputs_are_missing(bundle_dir):
    plan = make_plan(load_bundle(bundle_dir).manifest)
    assert plan.readers == {
        "x": ("stem",),
        "t0": ("s1.cpu", "s1.gpu"),
        "s1.cpu.y": ("s1.join",),
        "s1.gpu.y": ("s1.join",),
        "t1": ("s2.cpu", "s2.gpu"),
        "s2.cpu.y": ("s2.join",),
        "s2.gpu.y": ("s2.join",),
        "t2": ("head",),
    }
    assert plan.missing == {"stem": 1, "s1.cpu": 1, "s1.gpu": 1, "s1.join": 2, "s2.cpu": 1, "s2.gpu": 1, "s2.join": 2, "head": 1}
    assert sorted(plan.order, key=plan.order.get)[0] == "stem"
    assert (plan.inputs, plan.outputs) == (("x",), ("y",))
    assert {name: subgraph.processor for name, subgraph in plan.subgraphs.items()}["s1.gpu"] == "gpu"


def subgraph(name, inputs, outputs):
    return PlannedSubgraph(name, name, f"{name}.onnx", "cpu", inputs, outputs)


def test_steps_of_several_tensors_are_ordered_by_all_they_read():
    last = subgraph("last", ("p", "x", "j"), ("y",))
    plan = plan_of(
        ["x", "z"], ["y", "q"], [last, subgraph("first", ("z",), ("p", "q"))], [PlannedJoin("j", "j", "sum", ("q", "z"), "j", "cpu")]
    )
    assert list(plan.subgraphs) == ["first", "last"]
    assert sorted(plan.order, key=plan.order.get) == ["first", "j", "last"]
    assert plan.missing == {"first": 1, "j": 2, "last": 3}
    assert plan.readers["z"] == ("first", "j")
    assert plan.step("last") == last
    assert plan.step("j").outputs == ("j",)


def test_steps_that_wait_for_each_other_are_refused():
    with pytest.raises(StretchError, match="waits for a tensor that nothing writes before it"):
        plan_of(["x"], ["y"], [subgraph("a", ("x", "b"), ("a",)), subgraph("b", ("a",), ("b",))], [])


def test_first_step_that_waits_for_what_nothing_writes_is_named():
    steps = [subgraph("a", ("x",), ("a",)), subgraph("b", ("lost", "a"), ("b",)), subgraph("c", ("b",), ("c",))]
    with pytest.raises(StretchError, match="`b` waits for a tensor"):
        plan_of(["x"], ["c"], steps, [])


@given(st.lists(st.sets(st.integers(0, 11), min_size=1, max_size=3), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_steps_stand_as_given_as_far_as_what_they_read_allows(reads, shuffled):
    """Step i reads tensors of steps before it, or the input, and they are given in any order."""
    before = [{each for each in some if each < i} for i, some in enumerate(reads)]
    numbers = list(range(len(reads)))
    shuffled.shuffle(numbers)
    steps = [subgraph(f"n{i}", tuple(f"t{each}" for each in sorted(before[i])) or ("x",), (f"t{i}",)) for i in numbers]
    plan = plan_of(["x"], ["t0"], steps, [])
    left, expected = list(numbers), []
    while left:
        able = next(i for i in left if not before[i] & set(left))
        left.remove(able)
        expected.append(f"n{able}")
    assert list(plan.order) == expected
    assert list(plan.order.values()) == list(range(len(reads)))


@pytest.mark.slow
def test_longest_chain_that_a_bundle_may_hold_is_ordered():
    length = 20_000
    chain = [subgraph(f"n{i}", (f"t{i}",), (f"t{i + 1}",)) for i in reversed(range(length))]
    plan = plan_of(["t0"], [f"t{length}"], chain, [])
    assert list(plan.order) == [f"n{i}" for i in range(length)]
