import pytest

from stretch.operators.settings import Refusal, pooling_window


def test_pooling_window_larger_than_its_padded_input_has_the_size_of_what_it_covers():
    assert pooling_window((1, 4, 2, 9), 5, 2, 1, True)["kernel"] == (4, 5)
    assert pooling_window((1, 4, 3, 9), 3, 2, 0, True, 2)["kernel"] == (2, 3)
    with pytest.raises(Refusal, match="dilated pooling window"):
        pooling_window((1, 4, 4, 9), 3, 2, 0, True, 2)
