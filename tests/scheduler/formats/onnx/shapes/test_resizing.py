import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import StretchError
from scheduler.formats.onnx.shapes import RULES
from scheduler.formats.onnx.shapes.node import Node, Tensor
from tests.scheduler.formats.onnx.shapes.oracle import Case, agrees, node, reals

X = (1, 3, 8, 8)

modes = st.sampled_from(["nearest", "linear", "cubic"])
coordinates = st.sampled_from(["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"])
sides = st.tuples(st.integers(1, 12), st.integers(1, 12))


@given(st.tuples(st.integers(1, 40), st.integers(1, 40)), modes, st.data())
def test_image_is_resized_by_scales_and_rounded_down_as_the_runtime_does(old, mode, data):
    tenths = [data.draw(st.integers(-(-10 // size), 31)) for size in old]
    scales = np.array((1, 1, *[n / 10 for n in tenths]), np.float32)
    agrees(Case("Resize", [reals((1, 2, *old)), None, scales], {"mode": mode}, stored=(2,)))


@given(sides, sides, st.integers(1, 2), st.sampled_from(["linear", "nearest", "cubic"]))
def test_image_is_sampled_where_a_grid_says(old, new, batch, mode):
    agrees(Case("GridSample", [reals((batch, 3, *old)), reals((batch, *new, 2))], {"mode": mode}))


def scaled(*scales, attrs=None):
    return Node((Tensor(X), None, Tensor((len(scales),), 1, scales)), attrs or {})


@pytest.mark.parametrize(
    ("op", "given_node", "problem"),
    [
        ("Resize", scaled(1, 1, 1e9, 1e9), "its scales"),
        ("Resize", scaled(1, 1, float("nan"), 1), "its scales"),
        ("Resize", scaled(1, 1, float("inf"), 1), "its scales"),
        ("Resize", scaled(2, 2), "no scale for each axis"),
        ("Resize", scaled(1, 1, 0.01, 1), "it makes"),
        ("Resize", scaled(1, 1, 2, 2, attrs={"mode": b"best"}), "in the mode `best`"),
        ("Resize", scaled(1, 1, attrs={"axes": [2, 3]}), "along some axes"),
        ("Resize", scaled(1, 1, 2, 2, attrs={"coordinate_transformation_mode": b"tf_crop_and_resize"}), "it crops"),
        ("Resize", scaled(1, 1, 2, 2, attrs={"keep_aspect_ratio_policy": b"not_larger"}), "ratio of its sides"),
        ("Resize", node([X, None, (4,)]), "no constant"),
        ("Resize", node([X]), "it has no input 2"),
        ("Resize", node([X, None, None, (4,)], {}, {3: [1, 3, 10**9, 10**9]}), "it makes"),
        ("Resize", node([X, None, None, (4,)], {}, {3: [8, 8]}), "it makes"),
        ("GridSample", node([X, (1, 4, 4, 3)]), "its grid"),
        ("GridSample", node([X, (2, 4, 4, 2)]), "its grid"),
        ("GridSample", node([(1, 3), (1, 2)]), "its grid"),
    ],
)
def test_resizing_that_does_not_fit_or_grows_too_much_is_refused(op, given_node, problem):
    with pytest.raises(StretchError, match=problem):
        RULES[op](given_node)
