import numpy as np
import pytest

from predictors.errors import StretchError
from scheduler.formats.tflite.operators import ANY_TFLITE
from stretch.models.tflite import read_module
from tests.stretch.models.onnx.graphs import functions
from tests.stretch.models.tflite.files import agrees, model, op, random, write

pytestmark = pytest.mark.torch
pytest.importorskip("ai_edge_litert")

UNARY = ["ABS", "CEIL", "COS", "ELU", "EXP", "FLOOR", "HARD_SWISH", "LOGISTIC", "NEG", "RELU", "RELU6", "RELU_N1_TO_1", "ROUND", "SIN"]
UNARY += ["TANH", "SIGN", "RELU_0_TO_1", "SQUARE"]


@pytest.mark.parametrize("code", UNARY)
@pytest.mark.parametrize("shape", [(1, 6, 5, 4), (2, 7)])
def test_function_of_each_element_computes_what_the_runtime_does(tmp_path, code, shape):
    agrees(write(tmp_path / "m.tflite", op(code, ["x"]), shape=shape), random(shape, scale=2))


@pytest.mark.parametrize("code", ["LOG", "SQRT", "RSQRT"])
def test_function_of_positive_elements_computes_what_the_runtime_does(tmp_path, code):
    agrees(write(tmp_path / "m.tflite", op(code, ["x"])), np.abs(random((1, 6, 5, 4))) + 0.1)


OPTIONS = {"ADD": "AddOptions", "SUB": "SubOptions", "MUL": "MulOptions", "DIV": "DivOptions"}


@pytest.mark.parametrize("code", [*OPTIONS, "MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE"])
@pytest.mark.parametrize("other", [(), (4,), (5, 1), (1, 1, 1, 4), (1, 6, 5, 4), (6, 5, 4)])
@pytest.mark.parametrize("swapped", [False, True])
def test_function_of_two_tensors_computes_what_the_runtime_does(tmp_path, code, other, swapped):
    stored = {"c": np.abs(random(other, 1)) + np.float32(0.5)}
    reads = ["c", "x"] if swapped else ["x", "c"]
    x = random((1, 6, 5, 4))
    path = write(tmp_path / "m.tflite", op(code, reads, table=OPTIONS.get(code)), stored=stored)
    agrees(path, np.where(np.abs(x) < 0.1, np.float32(0.5), x))


@pytest.mark.parametrize("form", ["row", "plain"])
def test_tensors_in_other_orders_are_combined_as_in_the_file(tmp_path, form):
    shape = np.array([1, 120] if form == "row" else [1, 4, 6, 5], np.int32)
    operators = [
        op("RESHAPE", ["x", "shape"], ["r"]),
        op("ADD", ["r", "c"], ["a"], "AddOptions"),
        op("MUL", ["a", "r"], table="MulOptions"),
    ]
    agrees(write(tmp_path / "m.tflite", *operators, stored={"shape": shape, "c": random(tuple(shape), 1)}))


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
    found = agrees(write(tmp_path / "m.tflite", op("PRELU", ["x", "a"]), stored={"a": random(slope, 1)}))
    assert (functions(found) == ["PReLU"]) == (slope != (6, 5, 4))


@pytest.mark.parametrize("code", ["EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL", "NOT_EQUAL"])
def test_choice_by_a_comparison_computes_what_the_runtime_does(tmp_path, code):
    operators = [op(code, ["x", "c"], ["b"]), op("SELECT_V2", ["b", "x", "d"])]
    kinds = {"b": "bool"}
    agrees(write(tmp_path / "m.tflite", *operators, stored={"c": np.float32(0.1), "d": random((4,), 1)}, kinds=kinds))


def test_number_to_the_power_of_two_computes_what_the_runtime_does(tmp_path):
    agrees(write(tmp_path / "m.tflite", op("POW", ["x", "c"]), stored={"c": np.full((1,), 2.0, np.float32)}))


def test_bounds_on_both_sides_are_one_clipping(tmp_path):
    operators = [op("MAXIMUM", ["x", "low"], ["a"]), op("MINIMUM", ["a", "high"])]
    found = agrees(write(tmp_path / "m.tflite", *operators, stored={"low": np.float32(-0.5), "high": np.float32(0.7)}))
    assert functions(found) == ["clamp"]


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
    found = agrees(write(tmp_path / "m.tflite", *GATES[name], stored={"three": np.float32(3), "six": SIX}), random((1, 6, 5, 4), scale=3))
    assert functions(found) == [name]


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
