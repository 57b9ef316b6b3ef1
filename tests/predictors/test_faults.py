from typing import Annotated, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.faults import find_fault


class Leaf(msgspec.Struct, forbid_unknown_fields=True):
    value: Annotated[float, msgspec.Meta(gt=0)]
    kind: Literal["conv", "linear"] = "conv"


class Tree(msgspec.Struct, forbid_unknown_fields=True):
    leaf: Leaf
    named: dict[str, Leaf] = {}
    chosen: dict[Literal["fp32", "int8"], int] = {}
    many: tuple[Leaf, ...] = ()
    pair: tuple[int, int] = (1, 2)
    maybe: Leaf | None = None


GOOD = {"value": 1.5}


@pytest.mark.parametrize(
    ("raw", "where", "what", "hint"),
    [
        ({"lief": GOOD}, "lief", "unknown key", "`leaf`"),
        ({}, "", "lacks the key `leaf`", None),
        ({"leaf": {"valeu": 1}}, "leaf.valeu", "unknown key", "`value`"),
        ({"leaf": {"value": -1}}, "leaf.value", "expected `float` > 0", None),
        ({"leaf": {"value": 1, "kind": "convv"}}, "leaf.kind", "invalid enum value", "`conv`"),
        ({"leaf": GOOD, "named": {"gpu": {"value": "x"}}}, "named.gpu.value", "expected `float`, got `str`", None),
        ({"leaf": GOOD, "named": {"gpu": {}}}, "named.gpu", "lacks the key `value`", None),
        ({"leaf": GOOD, "named": {"a b": {"vlaue": 1}}}, "named.a b.vlaue", "unknown key", "`value`"),
        ({"leaf": GOOD, "chosen": {"fp33": 1}}, "chosen.fp33", "unknown key", "`fp32`"),
        ({"leaf": GOOD, "chosen": {"zzz": 1}}, "chosen.zzz", "unknown key", "fp32, int8"),
        ({"leaf": GOOD, "chosen": {"fp32": "x"}}, "chosen.fp32", "expected `int`", None),
        ({"leaf": GOOD, "many": [GOOD, {"value": 0}]}, "many[1].value", "expected `float` > 0", None),
        ({"leaf": GOOD, "pair": [1, "x"]}, "pair[1]", "expected `int`", None),
        ({"leaf": GOOD, "maybe": {"value": 0}}, "maybe.value", "expected `float` > 0", None),
        ({"leaf": GOOD, "maybe": 5}, "maybe", "expected `object", None),
        ({"leaf": 5}, "leaf", "expected `object`, got `int`", None),
        ([], "", "expected `object`, got `array`", None),
    ],
)
def test_place_fault_and_nearest_name_are_told(raw, where, what, hint):
    fault = find_fault(raw, Tree)
    assert fault.where == where
    assert what in fault.what
    assert (fault.hint is None) if hint is None else (hint in fault.hint)
    assert "[...]" not in fault.sentence


leaves = st.fixed_dictionaries(
    {}, optional={"value": st.floats(-1, 1) | st.text(max_size=2), "kind": st.sampled_from(["conv", "x"]), "odd": st.none()}
)
trees = st.fixed_dictionaries(
    {},
    optional={
        "leaf": leaves,
        "named": st.dictionaries(st.text(max_size=3), leaves, max_size=2),
        "chosen": st.dictionaries(st.sampled_from(["fp32", "fp16"]), st.integers() | st.text(max_size=1), max_size=2),
        "many": st.lists(leaves, max_size=2),
        "maybe": leaves | st.none(),
        "pair": st.lists(st.integers(), max_size=3),
    },
)


@pytest.mark.slow
@given(trees)
def test_there_is_a_fault_exactly_where_the_schema_refuses(raw):
    try:
        msgspec.convert(raw, Tree)
        refused = False
    except msgspec.ValidationError:
        refused = True
    assert (find_fault(raw, Tree) is not None) == refused
