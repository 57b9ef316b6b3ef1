import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import StretchError
from stretch.models.onnx import read_module
from tests.scheduler.formats.onnx.shapes.oracle import Case
from tests.stretch.models.onnx.oracle import agrees, random, save

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("matrices")


def layers(module):
    return [part for part in module.modules() if isinstance(part, torch.nn.Linear)]


@given(st.booleans(), st.sampled_from([None, (5,), (1, 5), (1,), ()]), st.sampled_from([1.0, 0.5]), st.sampled_from([1.0, 2.0]))
def test_general_product_is_a_linear_layer(folder, turned, bias, alpha, beta):
    weights = [random((5, 3) if turned else (3, 5), 1), *([] if bias is None else [random(bias, 2)])]
    made = agrees(folder, Case("Gemm", [random((2, 3)), *weights], {"transB": int(turned), "alpha": alpha, "beta": beta}))
    assert [layer.bias is None for layer in layers(made)] == [bias is None]


@pytest.mark.parametrize("shape", [(2, 3), (1, 4, 3), (1, 2, 4, 3)])
def test_product_with_a_stored_matrix_is_a_linear_layer(tmp_path, shape):
    assert len(layers(agrees(tmp_path, Case("MatMul", [random(shape), random((3, 5), 1)])))) == 1


@pytest.mark.parametrize("equation", ["abc,acd->abd", "abc,acd->a", "abc,acd->dba"])
def test_product_by_letters_computes_what_the_runtime_does(tmp_path, equation):
    agrees(tmp_path, Case("Einsum", [random((2, 4, 3)), random((2, 3, 5), 1)], {"equation": equation}))


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (Case("Gemm", [random((3, 2)), random((3, 5))], {"transA": 1}), "it turns what it reads"),
        (Case("Gemm", [random((2, 3)), random((3, 5)), random((2, 1))]), "not one number a column"),
        (Case("MatMul", [random((2, 3)), random((4, 5))]), "torch does not take what it reads"),
    ],
)
def test_product_that_is_none_of_torch_is_refused(tmp_path, case, reason):
    path = save(tmp_path / "m.onnx", case)
    with pytest.raises(StretchError, match=reason):
        read_module(path)


def test_determinants_are_those_of_the_runtime(tmp_path):
    agrees(tmp_path, Case("Det", [random((2, 3, 4, 4))]))
