import pytest

from stretch.operators.settings import Refusal, pair, pooling_window, window_padding


def test_one_number_stands_for_both_directions():
    assert pair(3) == pair((3, 3)) == pair([3]) == (3, 3)
    assert window_padding((1, 2)) == (1, 2, 1, 2)


@pytest.mark.parametrize("stride", [None, [], ()])
def test_absent_stride_of_a_pool_is_its_kernel(stride):
    assert pooling_window((1, 4, 9, 9), (2, 3), stride, 0, False)["stride"] == (2, 3)


def test_pooling_window_larger_than_its_padded_input_has_the_size_of_what_it_covers():
    assert pooling_window((1, 4, 2, 9), 5, 2, 1, True)["kernel"] == (4, 5)
    assert pooling_window((1, 4, 3, 9), 3, 2, 0, True, 2)["kernel"] == (2, 3)
    with pytest.raises(Refusal, match="dilated pooling window"):
        pooling_window((1, 4, 4, 9), 3, 2, 0, True, 2)
