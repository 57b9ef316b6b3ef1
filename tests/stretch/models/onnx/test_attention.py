import numpy as np
import pytest

from predictors.errors import StretchError
from stretch.models.onnx import read_module
from tests.scheduler.formats.onnx.shapes.oracle import Case
from tests.stretch.models.onnx.graphs import functions
from tests.stretch.models.onnx.oracle import agrees, random, save

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

Q, K, V = (random(shape, i) for i, shape in enumerate([(2, 4, 5, 8), (2, 4, 6, 8), (2, 4, 6, 3)]))
HEADS = {"q_num_heads": 4, "kv_num_heads": 4}
FLAT = [random((2, 5, 32)), random((2, 6, 32), 1), random((2, 6, 12), 2)]
MASK = np.random.default_rng(0).random((5, 6)) < 0.7


@pytest.mark.parametrize(
    "case",
    [
        Case("Attention", [Q, K, V]),
        Case("Attention", [Q, K, V], {"scale": 0.1}),
        Case("Attention", [Q, K, V, random((5, 6), 4)]),
        Case("Attention", [Q, K, V, random((2, 1, 5, 6), 4)]),
        Case("Attention", [Q, K, V, MASK | (np.arange(6) == 0)]),
        Case("Attention", [Q, K, V], {"is_causal": 1}),
        Case("Attention", [Q, K[:, :2], V[:, :2]]),
        Case("Attention", FLAT, HEADS),
        Case("Attention", [FLAT[0], *(random((2, 6, 16), i) for i in (1, 2))], {"q_num_heads": 4, "kv_num_heads": 2}),
    ],
    ids=lambda case: f"{case.attrs}-{case.inputs[1].shape}-{len(case.inputs)}",
)
def test_attention_computes_what_the_runtime_does(tmp_path, case):
    assert "scaled_dot_product_attention" in functions(agrees(tmp_path, case, 23))


ANGLES = random((9, 4), 5)
TURNS = [np.cos(ANGLES), np.sin(ANGLES)]
OWN = [each[None, :5].repeat(2, 0) for each in TURNS]
PLACES = np.array([[0, 1, 2, 3, 4], [8, 7, 1, 0, 3]])


@pytest.mark.parametrize("woven", [0, 1])
@pytest.mark.parametrize(
    "case",
    [
        Case("RotaryEmbedding", [Q, *TURNS, PLACES]),
        Case("RotaryEmbedding", [Q, *OWN]),
        Case("RotaryEmbedding", [FLAT[0], *TURNS, PLACES], {"num_heads": 4}),
        Case("RotaryEmbedding", [Q, *(each[:, :2].copy() for each in TURNS), PLACES], {"rotary_embedding_dim": 4}),
    ],
    ids=lambda case: f"{case.attrs}-{case.inputs[0].shape}-{len(case.inputs)}",
)
def test_turned_pairs_are_those_of_the_runtime(tmp_path, case, woven):
    agrees(tmp_path, Case(case.op, case.inputs, case.attrs | {"interleaved": woven}), 23)


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (Case("Attention", [Q, K, V], {"softcap": 2.0}), "bounds its scores"),
        (Case("Attention", [Q, K, V, None, K, V]), "computed before"),
        (Case("Attention", [Q, K, V, MASK], {"is_causal": 1}), "sees no later tokens besides"),
        (Case("Attention", FLAT), "32 channels are not of 0 heads"),
        (Case("Attention", FLAT, {"q_num_heads": 5, "kv_num_heads": 4}), "32 channels are not of 5 heads"),
        (Case("Attention", [Q, K[..., :3], V]), "torch does not take what it reads"),
        (Case("RotaryEmbedding", [FLAT[0], *TURNS, PLACES]), "32 channels are not of 0 heads"),
        (Case("RotaryEmbedding", [Q, *TURNS, PLACES + 5]), "its positions"),
        (Case("RotaryEmbedding", [Q, *TURNS]), r"its cosines have the shape \[9, 4\], not \[2, 5, 4\]"),
        (Case("RotaryEmbedding", [Q, *TURNS, PLACES], {"rotary_embedding_dim": 9}), "it turns 9 of 8 channels"),
    ],
)
def test_attention_that_torch_has_not_is_refused(tmp_path, case, reason):
    case.opset = 23
    path = save(tmp_path / "m.onnx", case)
    with pytest.raises(StretchError, match=reason):
        read_module(path)
