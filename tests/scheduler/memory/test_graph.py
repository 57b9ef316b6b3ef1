import pytest

from predictors.fusion import fuse
from predictors.graph import Op, OpGraph
from scheduler.memory import plan_memory
from scheduler.memory.graph import graph_lifetimes


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
    made = graph_lifetimes(branched, fuse(branched, "tflite_gpu"))
    at = names(made)
    assert set(at) == {"stem", "a1", "a2", "b1", "b2", "join"}
    assert made.before[at["a1"], at["b1"]]
    assert {tensor.bytes for tensor in made.tensors} == {512, 1024}


def test_side_by_side_branches_share_nothing(branched):
    made = graph_lifetimes(branched, fuse(branched, "tflite_gpu"), concurrent=True)
    at = names(made)
    assert made.overlap[at["a1"], at["b1"]]
    assert made.overlap[at["a1"], at["b2"]]
    assert made.before[at["stem"], at["join"]]
    sequential = graph_lifetimes(branched, fuse(branched, "tflite_gpu"))
    assert plan_memory(made).total_bytes >= plan_memory(sequential).total_bytes


def test_tensor_that_only_changes_its_name_is_read_through(branched):
    made = graph_lifetimes(branched, fuse(branched, "tflite_gpu"))
    join = made.tensors[names(made)["join"]]
    assert len(join.steps) == 2


def test_channels_are_stored_in_whole_slices(branched):
    half = graph_lifetimes(branched, fuse(branched, "tflite_gpu"), item_bytes=2, lanes=32)
    assert {tensor.bytes for tensor in half.tensors} == {32 * 16 * 2}
