import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import StretchError
from stretch.models.tflite import read_module
from tests.stretch.models.onnx.graphs import functions
from tests.stretch.models.tflite.files import agrees, op, random, write

pytestmark = pytest.mark.torch
pytest.importorskip("ai_edge_litert")

X = (1, 6, 5, 4)


def whole(*numbers):
    return np.array(numbers, np.int32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tflite")


@pytest.mark.parametrize("shape", [(1, 120), (1, 30, 4), (6, 20), (1, 5, 6, 4), (1, -1, 2), (2, 3, 5, 2, 2)])
def test_other_shape_has_the_elements_in_the_order_of_the_file(tmp_path, shape):
    agrees(write(tmp_path / "m.tflite", op("RESHAPE", ["x", "s"]), stored={"s": whole(*shape)}))


def test_row_becomes_the_image_again(tmp_path):
    operators = [op("RESHAPE", ["x", "a"], ["r"]), op("RELU", ["r"], ["p"]), op("RESHAPE", ["p", "b"])]
    found = agrees(write(tmp_path / "m.tflite", *operators, stored={"a": whole(1, 120), "b": whole(*X)}))
    assert "permute" not in functions(found)


@given(st.permutations(range(4)), st.permutations(range(4)))
def test_orders_of_axes_are_those_of_the_file(folder, first, second):
    operators = [op("TRANSPOSE", ["x", "a"], ["t"]), op("NEG", ["t"], ["n"]), op("TRANSPOSE", ["n", "b"])]
    agrees(write(folder / "order.tflite", *operators, stored={"a": whole(*first), "b": whole(*second)}))


@pytest.mark.parametrize("axis", [0, 1, 2, 3, -1])
def test_tensors_are_joined_along_the_axis_of_the_file(tmp_path, axis):
    operators = [op("ABS", ["x"], ["a"]), op("CONCATENATION", ["x", "c", "a"], table="ConcatenationOptions", axis=axis)]
    agrees(write(tmp_path / "m.tflite", *operators, stored={"c": random(X, 1)}))


@pytest.mark.parametrize("axis", [1, 3, -1])
def test_equal_parts_are_those_of_the_file(tmp_path, axis):
    operators = [op("SPLIT", ["axis", "x"], ["a", "b"], "SplitOptions", num_splits=2), op("SUB", ["b", "a"], table="SubOptions")]
    agrees(write(tmp_path / "m.tflite", *operators, stored={"axis": np.array(axis, np.int32)}))


def test_parts_of_given_sizes_are_those_of_the_file(tmp_path):
    operators = [
        op("SPLIT_V", ["x", "sizes", "axis"], ["a", "b"], "SplitVOptions", num_splits=2),
        op("CONCATENATION", ["b", "a"], table="ConcatenationOptions", axis=3),
    ]
    agrees(write(tmp_path / "m.tflite", *operators, stored={"sizes": whole(1, 3), "axis": np.array(3, np.int32)}))


def test_stacked_tensors_come_apart_again(tmp_path):
    operators = [
        op("ABS", ["x"], ["a"]),
        op("PACK", ["x", "a"], ["p"], "PackOptions", values_count=2, axis=2),
        op("UNPACK", ["p"], ["b", "c"], "UnpackOptions", num=2, axis=2),
        op("SUB", ["c", "b"], table="SubOptions"),
    ]
    agrees(write(tmp_path / "m.tflite", *operators))


@given(st.data())
def test_part_of_each_axis_is_that_of_the_file(folder, data):
    begins = [data.draw(st.integers(0, n - 1)) for n in X]
    sizes = [data.draw(st.sampled_from([-1, *range(1, n - begin + 1)])) for n, begin in zip(X, begins, strict=True)]
    agrees(
        write(
            folder / "slice.tflite", op("SLICE", ["x", "b", "s"], ["p"]), op("NEG", ["p"]), stored={"b": whole(*begins), "s": whole(*sizes)}
        )
    )


@given(st.data())
def test_strided_part_is_that_of_the_file(folder, data):
    begins = [data.draw(st.integers(-n, n - 1)) for n in X]
    ends = [data.draw(st.integers(begin % n + 1, n)) for n, begin in zip(X, begins, strict=True)]
    strides = [data.draw(st.integers(1, 3)) for _ in X]
    masks = {f"{name}_mask": data.draw(st.integers(0, 15)) for name in ("begin", "end", "shrink_axis")}
    shown = range(*slice(None if masks["begin_mask"] >> 1 & 1 else begins[1], None, 1).indices(6))
    if masks["begin_mask"] & masks["shrink_axis_mask"] or not shown:
        masks["begin_mask"] &= ~masks["shrink_axis_mask"]
    stored = {"b": whole(*begins), "e": whole(*ends), "s": whole(*strides)}
    # what is shrunk is read once, and runtimes ask for a stride of 1
    stored["s"][[bool(masks["shrink_axis_mask"] >> i & 1) for i in range(4)]] = 1
    operators = [op("STRIDED_SLICE", ["x", "b", "e", "s"], ["p"], "StridedSliceOptions", **masks), op("NEG", ["p"])]
    agrees(write(folder / "strided.tflite", *operators, stored=stored))


@pytest.mark.parametrize("indices", [whole(3, 0, 0), np.array(2, np.int32), np.array([[1, 0], [2, 3]], np.int32)])
@pytest.mark.parametrize("axis", [1, 3])
def test_places_are_gathered_along_the_axis_of_the_file(tmp_path, indices, axis):
    agrees(write(tmp_path / "m.tflite", op("GATHER", ["x", "i"], table="GatherOptions", axis=axis), stored={"i": indices}))


@pytest.mark.parametrize("widths", [((0, 0), (1, 2), (0, 1), (0, 0)), ((0, 0), (0, 0), (0, 0), (2, 1)), ((0, 0), (0, 1), (0, 0), (1, 0))])
@pytest.mark.parametrize("code", ["PAD", "PADV2", "MIRROR_PAD"])
def test_padding_is_that_of_the_file(tmp_path, widths, code):
    if code == "MIRROR_PAD" and widths[3] != (0, 0):
        pytest.skip("torch mirrors the axes of an image alone")
    reads = ["x", "w", "v"] if code == "PADV2" else ["x", "w"]
    table = "MirrorPadOptions" if code == "MIRROR_PAD" else None
    agrees(write(tmp_path / "m.tflite", op(code, reads, table=table), stored={"w": whole(*widths), "v": np.float32(0.7)}))


@pytest.mark.parametrize("block", [2, 1])
def test_blocks_of_pixels_and_channels_are_those_of_the_runtime(tmp_path, block):
    operators = [
        op("DEPTH_TO_SPACE", ["x"], ["d"], "DepthToSpaceOptions", block_size=2),
        op("SPACE_TO_DEPTH", ["d"], ["s"], "SpaceToDepthOptions", block_size=2),
        op("DEPTH_TO_SPACE", ["s"], ["y"], "DepthToSpaceOptions", block_size=block),
    ]
    agrees(write(tmp_path / "m.tflite", *operators))


def test_new_and_missing_axes_are_those_of_the_file(tmp_path):
    operators = [
        op("EXPAND_DIMS", ["x", "a"], ["e"]),
        op("SQUEEZE", ["e"], ["s"], "SqueezeOptions", squeeze_dims=whole(0, 2)),
        op("NEG", ["s"]),
    ]
    agrees(write(tmp_path / "m.tflite", *operators, stored={"a": np.array(2, np.int32)}))


@pytest.mark.parametrize("code", ["TILE", "BROADCAST_TO", "REVERSE_V2"])
def test_repeated_and_turned_elements_are_those_of_the_runtime(tmp_path, code):
    numbers = {"TILE": whole(1, 2, 1, 3), "BROADCAST_TO": whole(2, 6, 5, 4), "REVERSE_V2": whole(3)}[code]
    agrees(write(tmp_path / "m.tflite", op(code, ["x", "n"]), stored={"n": numbers}))


def test_shape_of_the_input_is_known(tmp_path):
    operators = [
        op("SHAPE", ["x"], ["shape"], "ShapeOptions", out_type=2),
        op("STRIDED_SLICE", ["shape", "b", "e", "s"], ["n"], "StridedSliceOptions"),
        op("CONCATENATION", ["n", "rest"], ["new"], "ConcatenationOptions", axis=0),
        op("RESHAPE", ["x", "new"]),
    ]
    stored = {"b": whole(0), "e": whole(1), "s": whole(1), "rest": whole(-1)}
    agrees(write(tmp_path / "m.tflite", *operators, stored=stored, kinds={"shape": "int32", "n": "int32", "new": "int32"}))


@pytest.mark.parametrize(
    ("operator", "stored", "problem"),
    [
        (op("RESHAPE", ["x", "n"]), whole(7, 7), r"it makes \[7, 7\] of \[1, 6, 5, 4\]"),
        (op("RESHAPE", ["x", "n"]), whole(-1, -1), "it makes the shape"),
        (op("RESHAPE", ["x", "n"]), whole(0, -1), "it makes"),
        (op("TRANSPOSE", ["x", "n"]), whole(0, 0, 1, 2), "it orders 4 axes"),
        (op("GATHER", ["x", "n"], table="GatherOptions", axis=1), whole(6), "it reads beyond an axis of 6"),
        (op("SLICE", ["x", "n", "n"]), whole(0, 1), r"it cuts \[0, 1\] and \[0, 1\] out of"),
        (op("PAD", ["x", "n"]), whole(0, 1), "it pads"),
        (op("MEAN", ["x", "n"], table="ReducerOptions"), whole(9), r"it has the axes \[9\] of 4"),
        (op("TILE", ["x", "n"]), whole(1, 1 << 20, 1 << 20, 1), "it makes a tensor of|torch does not take"),
        (op("DEPTH_TO_SPACE", ["x"], table="DepthToSpaceOptions", block_size=3), whole(0), "it makes blocks of 3"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, operator, stored, problem):
    with pytest.raises(StretchError, match=problem) as caught:
        read_module(write(tmp_path / "m.tflite", operator, stored={"n": stored}))
    assert "\n" not in caught.value.message
