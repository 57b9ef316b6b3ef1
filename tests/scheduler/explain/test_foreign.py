"""A verdict counted."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from scheduler.explain.answer import Verdict
from scheduler.explain.foreign import judge
from scheduler.explain.model import ForeignModel, ForeignOp


def chain(count):
    """Operators one behind the other."""
    ops = tuple(ForeignOp(f"n{i}", "Relu", "", (f"t{i}",), (f"t{i + 1}",), {}, ("float",), ((1,),), 10 * i) for i in range(count))
    return ForeignModel(path=None, kind="TFLite", ops=ops)


@given(st.lists(st.sampled_from(["on", "off", "gone"]), min_size=1, max_size=12))
def test_partitions_copies_and_share_are_those_of_a_chain_walked_by_hand(states):
    verdict = Verdict(runtime="r 1", device="d", target="T")
    for i, state in enumerate(states):
        if state == "on":
            verdict.taken[i] = "T"
        elif state == "gone":
            verdict.gone[i] = "folded"
    found = judge(chain(len(states)), verdict)
    there = [state for state in states if state != "gone"]
    assert found.partitions == sum(a == "on" and b != "on" for a, b in pairwise([*there, "off"]))
    assert found.copies == sum({a, b} == {"on", "off"} for a, b in pairwise(states))
    assert found.off == states.count("off") == len(found.obstacles)
    total = 10 * sum(range(len(states)))
    lost = 10 * sum(i for i, state in enumerate(states) if state == "off")
    assert found.share == (None if not total else (total - lost) / total)
    if found.obstacles:
        assert found.obstacles[0].operator == f"n{states.index('off')}"


def test_refusal_that_names_no_operator_is_about_the_file():
    found = judge(chain(2), Verdict(runtime="r 1", device="d", target="T", refused="too large"))
    assert found.obstacles[0].cause == "the file as a whole"


def test_partitions_that_the_runtime_tells_are_kept():
    found = judge(chain(2), Verdict(runtime="r 1", device="d", target="T", taken={0: "T", 1: "T"}, parts={0: 7, 1: 4}))
    assert [op.partition for op in found.operators] == [0, 1]
