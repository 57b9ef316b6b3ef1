"""Groups of channels, and the rules that tie them."""

from hypothesis import given
from hypothesis import strategies as st

from predictors.channels import Groups, OperatorView, freeze_all, fresh, side_by_side

SHAPE = (1, 12, 4, 4)


def test_unified_groups_have_units_that_divide_both():
    groups = Groups()
    a, b = (groups.new(4), 3), (groups.new(6), 2)
    assert groups.unify(a, b)
    assert groups.find(a) == groups.find(b)
    assert groups.size(a) == groups.size(b) == 12
    assert groups.units[groups.find(a)[0]] == 2


def test_pieces_of_different_size_are_not_unified():
    groups = Groups()
    a, b = (groups.new(4), 1), (groups.new(6), 1)
    assert not groups.unify(a, b)
    assert groups.find(a) != groups.find(b)


def test_frozen_group_freezes_what_it_is_unified_with():
    groups = Groups()
    a, b = (groups.new(4, frozen=True), 1), (groups.new(4), 1)
    groups.unify(a, b)
    assert groups.frozen[groups.find(b)[0]]


@given(st.lists(st.tuples(st.sampled_from([1, 2, 3, 4, 6, 12]), st.booleans()), min_size=2, max_size=6), st.data())
def test_size_of_a_piece_outlives_any_unification(given_groups, data):
    groups = Groups()
    pieces = [(groups.new(units, frozen), 12 // units) for units, frozen in given_groups]
    for _ in range(len(pieces)):
        assert groups.unify(data.draw(st.sampled_from(pieces)), data.draw(st.sampled_from(pieces)))
    assert all(groups.size(piece) == 12 for piece in pieces)


def test_rule_that_knows_nothing_freezes_what_it_reads_and_writes():
    groups = Groups()
    read = fresh(groups, OperatorView([], {}, SHAPE), [])
    written = freeze_all(groups, OperatorView([SHAPE], {}, SHAPE), [read])
    assert groups.frozen[read[0][0]]
    assert groups.frozen[written[0][0]]


def test_pieces_lie_in_the_order_of_what_is_read():
    groups = Groups()
    a, b = ((groups.new(2), 1),), ((groups.new(3), 1),)
    assert side_by_side(groups, OperatorView([], {}, SHAPE), [b, a]) == (*b, *a)


def test_tied_pieces_have_as_many_units_each_of_its_own_size():
    groups = Groups()
    queries, values, odd = (groups.new(8), 1), (groups.new(12), 1), (groups.new(10), 1)
    assert groups.tie([queries, values], 4)
    (unit, per), (other, more) = groups.find(queries), groups.find(values)
    assert (unit, groups.units[unit], per, more) == (other, 4, 2, 3)
    assert not groups.tie([queries, odd], 4)
    groups.freeze((values,))
    assert groups.frozen[groups.find(queries)[0]]
