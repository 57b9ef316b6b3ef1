"""Folds by family."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from predictors.fitting.fit import family_folds

families = st.dictionaries(st.text(min_size=1, max_size=4), st.sampled_from("abcdefgh"), min_size=1, max_size=40)


@given(families)
def test_every_family_is_in_one_fold_and_no_fold_is_empty(of):
    folds = family_folds(of, {name: frozenset() for name in of})
    assert folds.keys() == of.keys()
    assert len({(of[name], fold) for name, fold in folds.items()}) == len(set(of.values()))
    assert set(folds.values()) == set(range(min(5, len(set(of.values())))))


@given(families)
def test_folds_are_the_same_in_any_order_of_networks(of):
    kinds = {name: frozenset(family) for name, family in of.items()}
    assert family_folds(dict(reversed(of.items())), kinds) == family_folds(of, kinds)


def test_large_families_come_first_and_small_ones_fill_up():
    of = {f"{family}{i}": family for family, size in (("a", 9), ("b", 5), ("c", 4), ("d", 1)) for i in range(size)}
    folds = family_folds(of, {name: frozenset() for name in of}, folds=3)
    assert sorted(Counter(folds.values()).values()) == [5, 5, 9]


def test_two_families_that_alone_have_a_kind_are_apart():
    of = {f"{family}{i}": family for family, size in (("a", 9), ("b", 5), ("c", 4), ("d", 1)) for i in range(size)}
    kinds = {name: frozenset({"grouped"} if family in "cd" else ()) for name, family in of.items()}
    folds = family_folds(of, kinds, folds=3)
    assert folds["c0"] != folds["d0"]
