import pytest

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
