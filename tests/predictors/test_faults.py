from typing import Annotated, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.devices import PROFILE_FOLDER, load_device
from predictors.errors import StretchError
from predictors.faults import find_fault, nearest


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


def test_nearest_name_is_a_question_and_a_far_one_is_none():
    assert nearest("gpuu", ["cpu", "gpu"], "links.") == "did you mean `links.gpu`?"
    assert nearest("zzz", ["cpu", "gpu"]) is None


@pytest.mark.parametrize(
    ("old", "new", "where", "hint"),
    [
        ("[processors.gpu.efficiency]", "[processors.gpu.efficency]", "`processors.gpu.efficency` is an unknown key", "`efficiency`"),
        ("conv1x1 =", "conv1x2 =", "processors.cpu.efficiency has the unknown kernel kind `conv1x2`", "`conv1x1`"),
        ("launch_us =", "launch_ms =", "`processors.cpu.launch_ms` is an unknown key", "`launch_us`"),
        ("[links.gpu]", "[links.gqu]", "[links.gpu] is missing", "is it meant by [links.gqu]?"),
        (
            "contention = { value = 1",
            "contention = { value = -1",
            "`processors.cpu.contention.value` is wrong: expected `float` >= 1",
            None,
        ),
        ("fp32 = {", "fp33 = {", "peak_gops.fp33` is an unknown key", "`fp32`"),
        ('"NHWC"', '"NHCW"', "layout` is wrong: invalid enum value 'NHCW'", "did you mean `N"),
    ],
)
def test_errors_of_a_profile_name_the_processor_and_the_nearest_key(tmp_path, old, new, where, hint):
    text = (PROFILE_FOLDER / "mi9.toml").read_text()
    assert old in text
    path = tmp_path / "broken.toml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(StretchError) as caught:
        load_device(path)
    assert where in caught.value.message
    assert "[...]" not in caught.value.message
    assert (hint or "host.toml") in caught.value.hint
