import pytest

from stretch.operators.settings import pair, pooling_window, window_padding


def test_one_number_stands_for_both_directions():
    assert pair(3) == pair((3, 3)) == pair([3]) == (3, 3)
    assert window_padding((1, 2)) == (1, 2, 1, 2)


@pytest.mark.parametrize("stride", [None, [], ()])
def test_absent_stride_of_a_pool_is_its_kernel(stride):
    assert pooling_window((2, 3), stride, 0, False)["stride"] == (2, 3)
