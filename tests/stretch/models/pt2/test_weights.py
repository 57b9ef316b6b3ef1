import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import StretchError
from stretch.models.pt2.archive import Archive
from stretch.models.pt2.program import TensorMeta
from stretch.models.pt2.weights import _tensor, fixed, read_weights
from tests.stretch.models.pt2.archives import WEIGHTS, Small, changed, save

pytestmark = pytest.mark.torch


def meta(sizes, strides, offset=0, dtype=7):
    return TensorMeta(dtype, [{"as_int": n} for n in sizes], [{"as_int": n} for n in strides], {"as_int": offset})


def test_pickled_weight_is_refused_and_not_opened(tmp_path):
    def pickled(config):
        config["config"]["head.bias"]["use_pickle"] = True
        return config

    path = changed(save(tmp_path / "m.pt2", Small().eval()), WEIGHTS, pickled)
    with pytest.raises(StretchError, match=r"`head\.bias` is pickled, and pickles can execute anything"):
        read_weights(Archive(path), "model")


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"config": {"a": {}}}', b"\xff\xfe", b"[" * 100_000])
def test_list_of_weights_that_is_none_is_refused(tmp_path, content):
    path = changed(save(tmp_path / "m.pt2", Small().eval()), WEIGHTS, lambda _: content)
    with pytest.raises(StretchError, match="its list of weights is damaged"):
        read_weights(Archive(path), "model")


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-1, 9)), max_size=4), st.integers(-1, 9), st.integers(0, 40))
def test_weight_is_what_numpy_sees_or_refused(axes, offset, elements):
    sizes, strides = [size for size, _ in axes], [stride for _, stride in axes]
    memory = np.arange(elements, dtype=np.float32)
    inside = min([offset, *strides]) >= 0 and offset + sum((n - 1) * s for n, s in axes) < elements
    if not inside and 0 not in sizes:
        with pytest.raises(StretchError, match=r"reads beyond its|has sizes"):
            _tensor("w", meta(sizes, strides, offset), memory.tobytes())
    elif inside:
        wanted = np.lib.stride_tricks.as_strided(memory[offset:], sizes, [4 * n for n in strides])
        np.testing.assert_array_equal(_tensor("w", meta(sizes, strides, offset), memory.tobytes()).numpy(), wanted)


@pytest.mark.parametrize("size", [{}, {"as_int": "3"}, {"as_int": True}, {"as_expr": {}}, {"as_int": 1 << 60}])
def test_size_that_is_no_number_is_refused(size):
    with pytest.raises(StretchError, match="which is no number"):
        fixed(size)


def test_view_of_one_number_as_a_giant_is_refused():
    with pytest.raises(StretchError, match="reads beyond"):
        _tensor("w", meta([1 << 20, 1 << 20], [0, 0]), bytes(4))


def test_complex_numbers_are_refused():
    with pytest.raises(StretchError, match="element type 9, which no network computes with"):
        _tensor("w", meta([1], [1], dtype=9), bytes(8))
