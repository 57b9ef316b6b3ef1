from predictors.join import Join


def test_join_leaves_the_branches_as_they_are_unless_it_is_told():
    join = Join("concat")
    assert (join.convolves, join.whole) == (False, False)
