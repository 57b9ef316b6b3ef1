from predictors.joins import join_of, joins_that


def test_portions_meet_by_nothing_and_change_no_width():
    placed = join_of("placed")
    assert placed.meets is None
    assert placed.exact
    assert not placed.widens
    assert not placed.convolves
    assert "placed" not in joins_that(lambda join: True)
