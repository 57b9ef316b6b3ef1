import numpy as np
import pytest
from onnx import helper

from predictors.errors import StretchError
from stretch.models.builder import Builder
from stretch.models.onnx.known import MAX_KNOWN, by_rule, computed
from stretch.models.onnx.site import RULES, Site
from tests.scheduler.formats.onnx.shapes.oracle import Case, whole
from tests.stretch.models.onnx.oracle import random

pytestmark = pytest.mark.torch


def made(op, *reads, opset=17, **attrs):
    """What a node makes of stored tensors."""
    node = helper.make_node(op, ["" if x is None else "r" for x in reads], ["y"], **attrs)
    return computed(node, list(reads), attrs, opset)


def test_shapes_are_worked_out_as_exporters_write_them():
    [size] = made("Gather", whole(1, 64, 7, 7), np.array(1), axis=0)
    [row] = made("Unsqueeze", size, whole(0))
    [sizes] = made("Concat", whole(-1), row, axis=0)
    assert list(sizes) == [-1, 64]
    assert list(made("Unsqueeze", size, opset=11, axes=[0])[0]) == [64]
    assert list(made("Slice", whole(1, 64, 7), whole(3), whole(2**63 - 1))[0]) == []


@pytest.mark.parametrize(
    ("op", "reads", "attrs", "reason"),
    [
        ("ConstantOfShape", [whole(MAX_KNOWN, 2)], {}, "a stored tensor too large"),
        ("Expand", [np.ones(1, np.float32), whole(MAX_KNOWN + 1)], {}, "a stored tensor too large"),
        ("Range", [np.array(0), np.array(2**40), np.array(1)], {}, "a stored tensor too large"),
        ("NonZero", [np.ones(3, np.float32)], {}, "is not computed from what the file stores"),
        ("Reshape", [np.ones(3, np.float32), whole(2)], {}, "it makes"),
        ("Gather", [np.ones(3, np.float32), whole(*[9] * 20)], {}, "cannot be computed"),
        ("Add", [np.ones(3), np.ones(3)], {}, "numbers of type float64"),
    ],
)
def test_tensor_that_cannot_be_stored_is_refused_before_it_is_made(op, reads, attrs, reason):
    with pytest.raises(StretchError, match=reason):
        made(op, *reads, **attrs)


@pytest.mark.parametrize(
    "case",
    [
        Case("Swish", [random((2, 3))], opset=24),
        Case("AffineGrid", [random((1, 2, 3)), whole(1, 4, 5, 6)]),
        Case("Hardmax", [random((2, 3))]),
        Case("EyeLike", [random((2, 3))]),
        Case("CenterCropPad", [random((2, 3)), whole(4, 1)]),
    ],
    ids=lambda case: case.op,
)
def test_what_bundles_do_not_hold_is_computed_by_its_own_rule(case):
    found = Site(case.inputs, case.op, "known", case.attrs, 1, case.opset, Builder((1,)))
    np.testing.assert_allclose(by_rule(RULES[case.op], found)[0], case.computed()[0], atol=1e-6)


def test_stored_tensor_that_would_be_too_large_is_not_computed():
    grid = Site([random((1, 2, 3)), whole(1, 1, 1 << 13, 1 << 13)], "AffineGrid", "known", {}, 1, 20, Builder((1,)))
    with pytest.raises(StretchError, match="a stored tensor too large"):
        by_rule(RULES["AffineGrid"], grid)
