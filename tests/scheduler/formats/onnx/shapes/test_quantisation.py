import numpy as np
import pytest
from hypothesis import given

from predictors.errors import StretchError
from scheduler.formats.onnx.shapes import RULES
from scheduler.formats.onnx.shapes.node import Node, Tensor
from tests.scheduler.formats.onnx.shapes.oracle import Case, agrees, node, reals, shapes

X = (1, 3, 8, 8)


@given(shapes)
def test_bytes_without_a_zero_point_have_no_sign(shape):
    agrees(Case("QuantizeLinear", [reals(shape), reals(())], stored=(1,)))
    agrees(Case("DequantizeLinear", [np.ones(shape, np.int32), reals(())], stored=(1,)))


@pytest.mark.parametrize(
    ("op", "given_node", "problem"),
    [
        ("QuantizeLinear", node([X, (3, 3), (3, 3)]), "its scales have the shape"),
        ("QuantizeLinear", node([X, (3,)], {"block_size": 2}), "for each block"),
        ("QuantizeLinear", Node((Tensor(X), Tensor(()), Tensor((), 7)), {}), "no byte"),
        ("DequantizeLinear", node([X, ()]), "of type float"),
        ("DequantizeLinear", Node((Tensor(X, 3), Tensor((), 7)), {}), "no reals"),
    ],
)
def test_scales_that_do_not_fit_are_refused(op, given_node, problem):
    with pytest.raises(StretchError, match=problem):
        RULES[op](given_node)
