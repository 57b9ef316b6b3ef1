"""Operators along axes and on elements of TFLite files against LiteRT."""

import numpy as np
import pytest

from predictors.errors import StretchError
from scheduler.formats.tflite.file import ANY_TFLITE
from stretch.models.tflite import read_module
from tests.stretch.models.onnx.graphs import functions
from tests.stretch.models.tflite.files import agrees, model, op, random, write

pytest.importorskip("ai_edge_litert")
pytestmark = pytest.mark.torch


def whole(*numbers):
    return np.array(numbers, np.int32)


@pytest.mark.representatives(14)
@pytest.mark.parametrize("code", ["MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD"])
@pytest.mark.parametrize("axes", [(1, 2), (3,), (-1,), (1,), (1, 2, 3), (2, 1)])
@pytest.mark.parametrize("keep", [False, True])
def test_reduction_computes_what_the_runtime_does(tmp_path, code, axes, keep):
    path = write(tmp_path / "m.tflite", op(code, ["x", "axes"], table="ReducerOptions", keep_dims=keep), stored={"axes": whole(*axes)})
    result = agrees(path)
    if code == "MEAN" and set(axes) == {1, 2}:
        assert functions(result)[0] == "AdaptiveAvgPool2d"


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
    result = agrees(
        write(tmp_path / "m.tflite", *operators, op("FULLY_CONNECTED", [name, "w", "b"], table="FullyConnectedOptions"), stored=stored)
    )
    assert "permute" not in functions(result)
    assert functions(result)[-1] == "Linear"


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


UNARY = ["ABS", "CEIL", "COS", "ELU", "EXP", "FLOOR", "HARD_SWISH", "LOGISTIC", "NEG", "RELU", "RELU6", "RELU_N1_TO_1", "ROUND", "SIN"]
UNARY += ["TANH", "SIGN", "RELU_0_TO_1", "SQUARE"]


@pytest.mark.representatives(14)
@pytest.mark.parametrize("code", UNARY)
@pytest.mark.parametrize("shape", [(1, 6, 5, 4), (2, 7)])
def test_function_of_each_element_computes_what_the_runtime_does(tmp_path, code, shape):
    agrees(write(tmp_path / "m.tflite", op(code, ["x"]), shape=shape), random(shape, scale=2))


@pytest.mark.parametrize("code", ["LOG", "SQRT", "RSQRT"])
def test_function_of_positive_elements_computes_what_the_runtime_does(tmp_path, code):
    agrees(write(tmp_path / "m.tflite", op(code, ["x"])), np.abs(random((1, 6, 5, 4))) + 0.1)


OPTIONS = {"ADD": "AddOptions", "SUB": "SubOptions", "MUL": "MulOptions", "DIV": "DivOptions"}


@pytest.mark.representatives(18)
@pytest.mark.parametrize("code", [*OPTIONS, "MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE"])
@pytest.mark.parametrize("other", [(), (4,), (5, 1), (1, 1, 1, 4), (1, 6, 5, 4), (6, 5, 4)])
@pytest.mark.parametrize("swapped", [False, True])
def test_function_of_two_tensors_computes_what_the_runtime_does(tmp_path, code, other, swapped):
    stored = {"c": np.abs(random(other, 1)) + np.float32(0.5)}
    reads = ["c", "x"] if swapped else ["x", "c"]
    x = random((1, 6, 5, 4))
    path = write(tmp_path / "m.tflite", op(code, reads, table=OPTIONS.get(code)), stored=stored)
    agrees(path, np.where(np.abs(x) < 0.1, np.float32(0.5), x))


def test_image_and_a_row_of_channels_are_combined_as_in_the_file(tmp_path):
    operators = [op("MEAN", ["x", "axes"], ["m"], "ReducerOptions"), op("MUL", ["x", "m"], table="MulOptions")]
    agrees(write(tmp_path / "m.tflite", *operators, stored={"axes": np.array([1, 2], np.int32)}))


@pytest.mark.parametrize("alpha", [0.0, 0.2])
def test_leaky_relu_has_its_slope(tmp_path, alpha):
    agrees(write(tmp_path / "m.tflite", op("LEAKY_RELU", ["x"], table="LeakyReluOptions", alpha=alpha)))


@pytest.mark.parametrize("approximate", [False, True])
def test_gelu_has_its_form(tmp_path, approximate):
    agrees(write(tmp_path / "m.tflite", op("GELU", ["x"], table="GeluOptions", approximate=approximate)))


@pytest.mark.parametrize("slope", [(1, 1, 4), (4,), (6, 5, 4), (1, 1, 1)])
def test_slopes_are_of_channels_or_of_elements(tmp_path, slope):
    result = agrees(write(tmp_path / "m.tflite", op("PRELU", ["x", "a"]), stored={"a": random(slope, 1)}))
    assert (functions(result) == ["PReLU"]) == (slope != (6, 5, 4))


@pytest.mark.parametrize("code", ["EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL", "NOT_EQUAL"])
def test_choice_by_a_comparison_computes_what_the_runtime_does(tmp_path, code):
    operators = [op(code, ["x", "c"], ["b"]), op("SELECT_V2", ["b", "x", "d"])]
    kinds = {"b": "bool"}
    agrees(write(tmp_path / "m.tflite", *operators, stored={"c": np.float32(0.1), "d": random((4,), 1)}, kinds=kinds))


def test_number_to_the_power_of_two_computes_what_the_runtime_does(tmp_path):
    agrees(write(tmp_path / "m.tflite", op("POW", ["x", "c"]), stored={"c": np.full((1,), 2.0, np.float32)}))


def test_bounds_on_both_sides_are_one_clipping(tmp_path):
    operators = [op("MAXIMUM", ["x", "low"], ["a"]), op("MINIMUM", ["a", "high"])]
    result = agrees(write(tmp_path / "m.tflite", *operators, stored={"low": np.float32(-0.5), "high": np.float32(0.7)}))
    assert functions(result) == ["clamp"]


SIX = np.float32(1 / 6)
GATES = {
    "silu": [op("LOGISTIC", ["x"], ["g"]), op("MUL", ["x", "g"], table="MulOptions")],
    "hardsigmoid": [
        op("ADD", ["x", "three"], ["a"], "AddOptions", fused_activation_function=3),
        op("MUL", ["a", "six"], table="MulOptions"),
    ],
    "hardswish": [
        op("ADD", ["x", "three"], ["a"], "AddOptions", fused_activation_function=3),
        op("MUL", ["x", "a"], ["b"], "MulOptions"),
        op("MUL", ["six", "b"], table="MulOptions"),
    ],
}


@pytest.mark.parametrize("name", GATES)
def test_activation_of_several_operators_is_one(tmp_path, name):
    result = agrees(write(tmp_path / "m.tflite", *GATES[name], stored={"three": np.float32(3), "six": SIX}), random((1, 6, 5, 4), scale=3))
    assert functions(result) == [name]


def test_custom_operator_is_refused_as_one_even_where_it_is_named_like_an_own_one(tmp_path):
    tables = model(op("RELU", ["x"], ["r"]), op("NEG", ["r"]))
    tables["operator_codes"][1] |= {"builtin_code": 32, "deprecated_builtin_code": 32, "custom_code": "RELU"}
    (tmp_path / "m.tflite").write_bytes(bytes(ANY_TFLITE.encode(tables)))
    with pytest.raises(
        StretchError, match=r"operator `y` \(custom RELU\) of .*m\.tflite cannot be read: it is a custom operator"
    ) as refused:
        read_module(tmp_path / "m.tflite")
    assert "own operators" in refused.value.hint


def test_unknown_operator_is_refused_with_its_name(tmp_path):
    path = write(tmp_path / "m.tflite", op("TOPK_V2", ["x", "k"]), stored={"k": np.array(2, np.int32)})
    with pytest.raises(StretchError, match=r"operator `y` \(TOPK_V2\) of .*m\.tflite cannot be read: there is no rule"):
        read_module(path)
