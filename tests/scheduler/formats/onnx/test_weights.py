from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from onnx import TensorProto, helper, numpy_helper

from predictors.errors import StretchError
from scheduler.formats.onnx.shapes.constants import SHORT
from scheduler.formats.onnx.weights import TYPES, stored_tensor

FILE = Path("m.onnx")


@given(st.data(), st.sampled_from(sorted(TYPES)))
def test_weight_of_any_type_is_what_its_array_is(data, kind):
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    shape = data.draw(arrays.array_shapes(min_dims=0, max_dims=3, max_side=4))
    array = data.draw(arrays.arrays(dtype, shape))
    found = stored_tensor(numpy_helper.from_array(array, "w"), FILE)
    assert (found.shape, found.type) == (shape, kind)
    if array.size > SHORT:
        assert found.values is None
    else:
        np.testing.assert_array_equal(np.array(found.values, dtype).reshape(shape), array)


def test_weight_may_lie_in_fields_of_numbers():
    found = stored_tensor(helper.make_tensor("w", TensorProto.INT64, [2], [3, -4]), FILE)
    assert found.values == (3, -4)
    tensor = helper.make_tensor("w", TensorProto.INT64, [1], [3])
    tensor.dims[0] = 2
    with pytest.raises(StretchError, match=r"`w` has 8 bytes, its shape .* needs 16"):
        stored_tensor(tensor, FILE)


@given(st.sampled_from(sorted(TYPES)), st.lists(st.integers(-(2**31), 2**31 - 1), max_size=4))
def test_numbers_that_a_type_does_not_hold_are_still_as_many(kind, numbers):
    if TYPES[kind][1] == "int32_data":
        tensor = TensorProto(name="w", data_type=kind, dims=[len(numbers)], int32_data=numbers)
        assert len(stored_tensor(tensor, FILE).values) == len(numbers)


def test_weight_beside_the_file_is_not_read(tmp_path):
    (tmp_path / "w.bin").write_bytes(b"\0" * 8)
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="w.bin")
    assert stored_tensor(tensor, tmp_path / "m.onnx").values is None
