import numpy as np
import pytest

from predictors.errors import StretchError
from scheduler.bundle.manifest import SubgraphEntry
from scheduler.bundle.rows import cut, cut_shape, read_alone, read_by


def entry(inputs, rows):
    return SubgraphEntry("s", "s", "cpu", "s.onnx", inputs, ("y",), 0, rows)


@pytest.mark.parametrize(("layout", "shape", "axis"), [("NCHW", (2, 3, 8, 4), 2), ("NHWC", (2, 8, 4, 3), 1)])
def test_rows_are_cut_along_the_axis_of_the_layout(layout, shape, axis):
    x = np.arange(np.prod(shape)).reshape(shape)
    found = cut(x, (2, 5), layout)
    assert found.shape == cut_shape(shape, (2, 5), layout)
    assert np.array_equal(found, np.take(x, range(2, 5), axis))
    assert np.shares_memory(found, x)


def test_tensor_of_which_no_rows_are_stated_is_read_whole():
    x = np.zeros((1, 5))
    assert cut(x, None) is x
    assert cut_shape((1, 5), None) == (1, 5)


def test_subgraph_reads_its_rows_in_one_piece_and_in_the_order_of_its_inputs():
    tensors = {"a": np.arange(24.0).reshape(1, 3, 4, 2), "b": np.ones((1, 2))}
    b, a = read_by(entry(("b", "a"), {"a": (1, 3)}), tensors)
    assert (a.shape, a.flags.c_contiguous, b.shape) == ((1, 3, 2, 2), True, (1, 2))
    assert np.array_equal(a, tensors["a"][:, :, 1:3])
    assert np.array_equal(read_alone(entry(("a",), {"a": (1, 3)}), tensors), a)
    with pytest.raises(StretchError, match=r"reads 2 tensors \(b, a\), and only one is supported here"):
        read_alone(entry(("b", "a"), {}), tensors)
