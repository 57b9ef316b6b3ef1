import numpy as np
import pytest

from predictors.errors import StretchError
from scheduler.formats.tflite_schema import TFLITE
from stretch.formats.tflite import writer as module
from stretch.formats.tflite.writer import Piece, Quant, Writer


def small(dtype="float32"):
    """A file whose only subgraph doubles a tensor."""
    writer = Writer("a model")
    piece = Piece(writer, "step")
    quant = Quant(0.5, -3) if dtype == "int8" else None
    x = piece.tensor("x", (1, 2), dtype, quant)
    two = piece.constant(
        "two", np.full((1, 2), 2, np.float32) if quant is None else np.full((1, 2), 2, np.int8), () if quant is None else [1.0]
    )
    y = piece.tensor("y", (1, 2), dtype, quant)
    piece.op("MUL", [x, two], y, fused_activation_function=1)
    writer.add(piece, {"x": x}, {"y": y})
    return writer


def test_signature_is_called_like_its_subgraph_and_names_its_ends():
    model = TFLITE.decode(small().finish())
    (signature,) = model["signature_defs"]
    assert (signature["signature_key"], signature["inputs"], signature["outputs"]) == (
        "step",
        [{"name": "x", "tensor_index": 0}],
        [{"name": "y", "tensor_index": 2}],
    )
    assert model["description"] == "a model"


@pytest.mark.parametrize(("dtype", "version"), [("float32", 1), ("int8", 2)])
def test_version_of_an_operator_follows_the_type_of_its_tensors(dtype, version):
    (code,) = TFLITE.decode(small(dtype).finish())["operator_codes"]
    assert (code["builtin_code"], code["version"]) == (18, version)


def test_weights_of_more_than_a_file_holds_are_refused(monkeypatch):
    monkeypatch.setattr(module, "MAX_BYTES", 100)
    writer = Writer("m")
    writer.buffer(np.zeros(20, np.float32))
    with pytest.raises(StretchError, match="more than 2 GB of weights"):
        writer.buffer(np.zeros(6, np.float32))
