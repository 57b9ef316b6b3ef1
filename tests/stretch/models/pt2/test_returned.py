"""The structure that an exported network returns, against torch's own trees."""

import collections
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import StretchError
from stretch.models.pt2.returned import rebuilt

torch = pytest.importorskip("torch")
from torch.utils._pytree import tree_flatten, treespec_dumps  # noqa: E402 - torch may be missing

pytestmark = pytest.mark.torch

TREES = st.recursive(
    st.integers(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(TREES)
def test_structure_is_the_one_that_torch_wrote(tree):
    values, spec = tree_flatten(tree)
    assert rebuilt(treespec_dumps(spec), {}, values) == (tree, [])


@given(TREES)
def test_structure_of_more_or_fewer_values_is_refused(tree):
    values, spec = tree_flatten(tree)
    with pytest.raises(StretchError, match="holds fewer than its"):
        rebuilt(treespec_dumps(spec), {}, [*values, 0])
    if values:
        with pytest.raises(StretchError, match="holds more than its outputs"):
            rebuilt(treespec_dumps(spec), {}, values[1:])


def test_ordered_dictionaries_are_dictionaries_in_their_order():
    values, spec = tree_flatten(collections.OrderedDict(b=1, a=2))
    found, other = rebuilt(treespec_dumps(spec), {}, values)
    assert (list(found.items()), other) == ([("b", 1), ("a", 2)], [])


LEAF = {"type": None, "context": None, "children_spec": []}


def spec(kind, context, *parts):
    return json.dumps([1, {"type": kind, "context": context, "children_spec": list(parts)}])


@pytest.mark.parametrize(
    ("kind", "context", "found"),
    [
        ("collections.namedtuple", "Pair", {"p": 1, "q": 2}),
        ("collections.namedtuple", "Other", (1, 2)),
        ("a.Dataclass", '[["u", "v"], []]', {"u": 1, "v": 2}),
        ("a.ModelOutput", '["u", "v"]', {"u": 1, "v": 2}),
        ("a.Class", "os.system", (1, 2)),
        ("a.Class", '["u", "u"]', (1, 2)),
        ("a.Class", None, (1, 2)),
    ],
)
def test_containers_of_somebodys_classes_are_dictionaries_or_tuples_and_told(kind, context, found):
    made, other = rebuilt(spec(kind, context, LEAF, LEAF), {"Pair": ["p", "q"]}, [1, 2])
    assert (made, other) == (found, [context if kind.startswith("collections") else kind])


def test_values_without_a_structure_are_a_tuple_and_one_is_itself():
    assert rebuilt("", {}, [1]) == (1, [])
    assert rebuilt("", {}, [1, 2]) == ((1, 2), [])


def deep(levels):
    found = LEAF
    for _ in range(levels):
        found = {"type": "builtins.tuple", "context": "null", "children_spec": [found]}
    return json.dumps([1, found])


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "1",
        "[]",
        "[1, 2]",
        '[1, {"type": 3}]',
        deep(40),
        "[" * 100_000,
        spec("builtins.dict", "null", LEAF),
        spec("builtins.dict", '["a", "b"]', LEAF),
    ],
)
def test_what_is_no_structure_is_refused(text):
    with pytest.raises(StretchError, match="that it returns") as caught:
        rebuilt(text, {}, [1])
    assert "\n" not in caught.value.message
