from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from onnx import TensorProto, helper, numpy_helper

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


def test_weight_beside_the_file_is_not_read(tmp_path):
    (tmp_path / "w.bin").write_bytes(b"\0" * 8)
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="w.bin")
    assert stored_tensor(tensor, tmp_path / "m.onnx").values is None
