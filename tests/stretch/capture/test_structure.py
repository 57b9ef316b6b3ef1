from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from hypothesis import given  # noqa: E402 - torch may be missing
from hypothesis import strategies as st  # noqa: E402

from predictors.errors import StretchError  # noqa: E402
from stretch.capture.structure import Result, Returned, keyed, leaves, rebuilt, tensors  # noqa: E402

pytestmark = pytest.mark.torch

Pair = namedtuple("Pair", "first second")


@dataclass(frozen=True)
class Answer:
    scores: Any
    extra: Any = None


def containers(inner):
    return st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from(["out", "aux", "a b", 0]), inner, max_size=3),
        st.dictionaries(st.sampled_from("ab"), inner, max_size=2).map(OrderedDict),
        st.builds(Pair, inner, inner),
        st.builds(Answer, inner, inner),
    )


STRUCTURES = st.recursive(st.one_of(st.integers(), st.none(), st.text(max_size=2)), containers, max_leaves=12)


@given(STRUCTURES)
def test_a_structure_of_its_own_leaves_is_equal_and_of_the_same_kinds(structure):
    again = rebuilt(structure, iter([leaf for _, leaf in leaves(structure)]))
    assert again == structure
    assert type(again) is type(structure)


@given(STRUCTURES)
def test_each_leaf_has_a_name_of_its_own_and_its_place(structure):
    names = [name for name, _ in keyed(structure)]
    assert len(set(names)) == len(names)
    marked = rebuilt(structure, iter(names))
    assert [leaf for _, leaf in leaves(marked)] == names


def test_kinds_that_know_more_than_their_content_are_kept():
    found = rebuilt(defaultdict(list, a=1), iter([2]))
    assert found == {"a": 2}
    assert found.default_factory is list


def test_template_is_filled_with_values_and_keeps_what_is_no_result():
    returned = Returned({"out": Result("conv", "out"), "again": Result("conv", "again"), "word": "x", "none": None})
    assert returned.filled({"conv": 7}) == {"out": 7, "again": 7, "word": "x", "none": None}
    assert returned.keys(("conv",)) == ("out",)
    assert not returned.plain
    assert Returned(Result("conv", "output")).filled({"conv": 7}) == 7


def test_structure_that_holds_itself_is_refused():
    ring = []
    ring.append(ring)
    with pytest.raises(StretchError, match="nested"):
        tensors(ring)
