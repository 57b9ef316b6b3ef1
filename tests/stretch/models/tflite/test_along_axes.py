import numpy as np
import pytest

from predictors.errors import StretchError
from stretch.models.tflite import read_module
from tests.stretch.models.onnx.graphs import functions
from tests.stretch.models.tflite.files import agrees, op, random, write

pytestmark = pytest.mark.torch
pytest.importorskip("ai_edge_litert")


def whole(*numbers):
    return np.array(numbers, np.int32)


@pytest.mark.parametrize("code", ["MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD"])
@pytest.mark.parametrize("axes", [(1, 2), (3,), (-1,), (1,), (1, 2, 3), (2, 1)])
@pytest.mark.parametrize("keep", [False, True])
def test_reduction_computes_what_the_runtime_does(tmp_path, code, axes, keep):
    path = write(tmp_path / "m.tflite", op(code, ["x", "axes"], table="ReducerOptions", keep_dims=keep), stored={"axes": whole(*axes)})
    found = agrees(path)
    if code == "MEAN" and set(axes) == {1, 2}:
        assert functions(found)[0] == "AdaptiveAvgPool2d"


@pytest.mark.parametrize("shape", [(1, 6, 5, 4), (2, 7), (1, 3, 8)])
@pytest.mark.parametrize("beta", [1.0, 0.5])
def test_softmax_is_along_the_last_axis_of_the_file(tmp_path, shape, beta):
    agrees(write(tmp_path / "m.tflite", op("SOFTMAX", ["x"], table="SoftmaxOptions", beta=beta), shape=shape), random(shape))


@pytest.mark.parametrize("code", ["LOG_SOFTMAX", "L2_NORMALIZATION"])
def test_normalisation_is_along_the_last_axis_of_the_file(tmp_path, code):
    agrees(write(tmp_path / "m.tflite", op(code, ["x"], table="L2NormOptions" if code[0] == "L" and "2" in code else None)))


def test_local_response_is_that_of_the_runtime(tmp_path):
    settings = {"radius": 1, "bias": 1.0, "alpha": 0.3, "beta": 0.5}
    agrees(write(tmp_path / "m.tflite", op("LOCAL_RESPONSE_NORMALIZATION", ["x"], table="LocalResponseNormalizationOptions", **settings)))


@pytest.mark.parametrize("code", ["ARG_MAX", "ARG_MIN"])
def test_place_of_an_extreme_is_that_of_the_runtime(tmp_path, code):
    operators = [op(code, ["x", "axis"], ["i"], f"{code[:3].title()}{code[4:].title()}Options", output_type=2)]
    operators.append(op("CAST", ["i"], table="CastOptions", in_data_type=2, out_data_type=0))
    agrees(write(tmp_path / "m.tflite", *operators, stored={"axis": whole(3)}, kinds={"i": "int32"}))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("keep", [False, True])
def test_matrix_reads_the_last_axis(tmp_path, bias, keep):
    reads = ["x", "w", "b"] if bias else ["x", "w", None]
    path = write(
        tmp_path / "m.tflite",
        op("FULLY_CONNECTED", reads, table="FullyConnectedOptions", keep_num_dims=keep, fused_activation_function=1),
        stored={"w": random((3, 7), 1), "b": random((3,), 2)},
        shape=(1, 5, 7),
    )
    agrees(path, random((1, 5, 7)))


@pytest.mark.parametrize("reshaped", [False, True])
@pytest.mark.parametrize("active", [False, True])
def test_matrix_of_a_flattened_image_has_its_columns_in_the_order_of_torch(tmp_path, reshaped, active):
    name = "x"
    operators = []
    if reshaped:
        operators.append(op("RESHAPE", [name, "shape"], ["r"]))
        name = "r"
    if active:
        operators.append(op("RELU", [name], ["a"]))
        name = "a"
    stored = {"shape": whole(1, 120), "w": random((3, 120), 1), "b": random((3,), 2)}
    found = agrees(
        write(tmp_path / "m.tflite", *operators, op("FULLY_CONNECTED", [name, "w", "b"], table="FullyConnectedOptions"), stored=stored)
    )
    assert "permute" not in functions(found)
    assert functions(found)[-1] == "Linear"


@pytest.mark.parametrize(("left", "right"), [(False, False), (False, True), (True, False)])
def test_product_of_two_tensors_computes_what_the_runtime_does(tmp_path, left, right):
    shape = (2, 5, 3) if left else (2, 3, 5)
    other = (2, 4, 5) if right else (2, 5, 4)
    path = write(
        tmp_path / "m.tflite",
        op("BATCH_MATMUL", ["x", "c"], table="BatchMatMulOptions", adj_x=left, adj_y=right),
        stored={"c": random(other, 1)},
        shape=shape,
    )
    agrees(path, random(shape))


def test_shuffled_weights_are_refused(tmp_path):
    path = write(
        tmp_path / "m.tflite",
        op("FULLY_CONNECTED", ["x", "w", None], table="FullyConnectedOptions", weights_format=1),
        stored={"w": random((3, 4))},
    )
    with pytest.raises(StretchError, match="shuffled for one runtime"):
        read_module(path)
