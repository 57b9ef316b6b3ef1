"""Files of anybody as lists of operators."""

from contextlib import suppress

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import external_data_helper

from predictors.errors import StretchError, UsageError
from scheduler.explain.model import open_model
from tests.scheduler.explain.files import FOREIGN, conv, model, node, weights


def test_operators_have_types_shapes_and_work(foreign):
    first, *_ = open_model(foreign["plain"]).ops
    assert (first.name, first.op, first.macs) == ("conv", "Conv", 4 * 8 * 8 * 3 * 9)
    assert first.types == ("float",)
    assert first.shapes[0] == (1, 3, 8, 8)


def test_open_size_is_told(foreign):
    assert open_model(foreign["open_batch"]).ops[0].dynamic
    assert not open_model(foreign["plain"]).ops[0].dynamic


@given(st.lists(st.sampled_from(["", "a", "Relu_1", "Relu_2"]), min_size=1, max_size=6))
def test_every_node_gets_a_name_of_its_own(tmp_path_factory, names):
    chain = [node("Relu", [f"t{i}"], [f"t{i + 1}"], name) for i, name in enumerate(names)]
    chain[0].input[0] = "x"
    chain[-1].output[0] = "y"
    path = tmp_path_factory.mktemp("names") / "m.onnx"
    onnx.save(model(chain, out=(1, 3, 8, 8)), str(path))
    found = [op.name for op in open_model(path).ops]
    assert len(set(found)) == len(names)
    assert all(name in found for name in names if name)


@pytest.mark.parametrize("place", ["../elsewhere.bin", "/etc/hostname"])
def test_weights_outside_of_the_folder_are_refused(tmp_path, place):
    foreign = model([conv(writes="y")], [weights("w", 4, 3, 3, 3)], out=(1, 4, 8, 8))
    external_data_helper.set_external_data(foreign.graph.initializer[0], place)
    foreign.graph.initializer[0].ClearField("raw_data")
    path = tmp_path / "m.onnx"
    path.write_bytes(foreign.SerializeToString())
    with pytest.raises(StretchError, match="outside of its folder"):
        open_model(path)


@pytest.mark.parametrize("content", [b"", b"TFL3 and more", b"\x08\x07\x12"])
@pytest.mark.parametrize("ending", [".onnx", ".tflite"])
def test_damaged_file_is_refused_in_one_sentence(tmp_path, content, ending):
    path = tmp_path / f"m{ending}"
    path.write_bytes(content)
    with pytest.raises(StretchError) as error:
        open_model(path)
    assert "\n" not in error.value.message


@given(st.integers(0, 10**6), st.integers(0, 255))
def test_file_with_a_changed_byte_is_read_or_refused_and_nothing_else(tmp_path_factory, place, byte):
    content = bytearray(FOREIGN["plain"]().SerializeToString())
    content[place % len(content)] = byte
    path = tmp_path_factory.mktemp("bytes") / "m.onnx"
    path.write_bytes(bytes(content))
    with suppress(StretchError):
        assert open_model(path).ops


def test_file_of_another_kind_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"neither \.onnx nor \.tflite"):
        open_model(tmp_path / "m.pt2")


def test_work_of_matrices_is_counted(tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(model([node("MatMul", ["x", "w"], ["y"], "product")], [weights("w", 16, 5)], shape=(7, 16), out=(7, 5)), str(path))
    assert open_model(path).ops[0].macs == 7 * 16 * 5
