import numpy as np
import pytest

from predictors.errors import StretchError
from stretch.models.onnx import read_module
from tests.scheduler.formats.onnx.shapes.oracle import Case
from tests.stretch.models.onnx.oracle import agrees, random, save

pytestmark = pytest.mark.torch

STEPS, BATCH, WIDTH, SIZE = 5, 2, 3, 4
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def layer(op, direction="forward", *, bias=True, state=False, results=1, **attrs):
    ways, rows = 2 if direction == "bidirectional" else 1, GATES[op] * SIZE
    inputs = [random((STEPS, BATCH, WIDTH)), random((ways, rows, WIDTH), 1), random((ways, rows, SIZE), 2)]
    inputs.append(random((ways, 2 * rows), 3) if bias else None)
    inputs += [None] + [random((ways, BATCH, SIZE), 4)] * (2 if op == "LSTM" else 1) if state else []
    more = {"linear_before_reset": 1} if op == "GRU" else {}
    return Case(op, inputs, {"hidden_size": SIZE, "direction": direction, **more, **attrs}, results=results)


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("bias", [True, False])
def test_layer_computes_what_the_runtime_does(tmp_path, op, direction, bias):
    if not bias:
        case = layer(op, direction)
        case.inputs = case.inputs[:3]
        agrees(tmp_path, case)
    else:
        agrees(tmp_path, layer(op, direction))


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (layer("GRU", linear_before_reset=0), "it resets before its product"),
        (layer("LSTM", activations=["Relu", "Tanh", "Tanh"]), "its activations are"),
        (layer("LSTM", clip=1.0), "it clips"),
        (layer("RNN", direction="sideways"), "its direction is `sideways`"),
    ],
)
def test_layer_that_torch_has_not_is_refused(tmp_path, case, reason):
    with pytest.raises(StretchError, match=reason):
        read_module(save(tmp_path / "m.onnx", case))


def test_weights_of_another_size_are_refused(tmp_path):
    case = layer("LSTM")
    case.inputs[2] = np.zeros((1, 16, 5), np.float32)
    with pytest.raises(StretchError, match="its weights have the shapes"):
        read_module(save(tmp_path / "m.onnx", case))
