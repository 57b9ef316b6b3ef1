"""Both ends of the range of multiply-accumulates."""

from stretch.planning.constraints.total import TotalMacs


def test_each_end_is_loosened_by_itself():
    low, high = TotalMacs().limits((0.97, 1.03), [])
    assert (low.value, high.value) == (0.97, 1.03)
    assert low.put((0.97, 1.03), low.loosest) == (0.01, 1.03)
    assert high.put((0.97, 1.03), high.loosest) == (0.97, 100.0)
