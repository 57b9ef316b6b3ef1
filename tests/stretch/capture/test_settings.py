import pytest

from stretch.capture.settings import Refusal, adaptive_pool, avg_pool, max_pool, pair, window_padding


def test_one_number_stands_for_both_directions():
    assert pair(3) == pair((3, 3)) == pair([3]) == (3, 3)
    assert window_padding((1, 2)) == (1, 2, 1, 2)


@pytest.mark.parametrize("stride", [None, [], ()])
def test_absent_stride_of_a_pool_is_its_kernel(stride):
    assert max_pool((2, 3), stride, 0, 1, False, False)["stride"] == (2, 3)


def test_adaptive_pooling_to_equal_windows_is_plain_pooling():
    assert adaptive_pool("avg", (1, 4, 8, 6), (4, 3)) == (
        "avg_pool",
        {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0, 0, 0), "ceil_mode": False, "count_include_pad": True},
    )
    assert adaptive_pool("max", (1, 4, 8, 6), (None, 6)) == ("identity", {})


@pytest.mark.parametrize(
    "call",
    [
        lambda: adaptive_pool("avg", (1, 4, 8, 8), 3),
        lambda: max_pool(2, 2, 0, 1, False, True),
        lambda: avg_pool(2, 2, 0, False, True, 5),
    ],
)
def test_setting_that_is_not_supported_is_refused(call):
    with pytest.raises(Refusal):
        call()
