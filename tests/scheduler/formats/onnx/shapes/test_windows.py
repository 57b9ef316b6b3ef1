"""Shapes and work of windows and resized images, against ONNX Runtime."""

import math

import numpy as np
import onnx.defs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import StretchError
from scheduler.formats.onnx.shapes import RULES
from scheduler.formats.onnx.shapes.node import REASONS, KnownTensor, ShapeNode
from tests.scheduler.formats.onnx.shapes.oracle import Case, agrees, node, reals, rule

X = (1, 3, 8, 8)


def lists(draw, axes, low, high):
    return [draw(st.integers(low, high)) for _ in range(axes)]


@st.composite
def windows(draw, op):
    """A convolution or pool over one to three axes."""
    axes = draw(st.integers(1, 3))
    kernel, strides = lists(draw, axes, 1, 3), lists(draw, axes, 1, 3)
    attrs = {"kernel_shape": kernel, "strides": strides, "pads": [draw(st.integers(0, k - 1)) for k in kernel * 2]}
    # Average pools have dilations since opset 19, which the runtime computes for images alone.
    if op in ("Conv", "MaxPool"):
        attrs["dilations"] = lists(draw, axes, 1, 2)
    if op not in ("Conv", "LpPool"):
        attrs["ceil_mode"] = draw(st.integers(0, 1))
    reach = [d * (k - 1) + 1 for d, k in zip(attrs.get("dilations", [1] * axes), kernel, strict=True)]
    size = [draw(st.integers(r, 8)) for r in reach]
    if op != "Conv":
        return Case(op, [reals((draw(st.integers(1, 2)), draw(st.integers(1, 3)), *size))], attrs, results=1)
    groups, drawn, more = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(1, 2))
    bias = [reals((groups * more,))] if draw(st.booleans()) else []
    return Case(op, [reals((1, groups * drawn, *size)), reals((groups * more, drawn, *kernel)), *bias], {**attrs, "group": groups})


@given(st.data())
@pytest.mark.parametrize("op", ["AveragePool", "Conv", "LpPool", "MaxPool"])
def test_window_moves_over_one_to_three_axes_as_in_the_runtime(op, data):
    agrees(data.draw(windows(op)))


@pytest.mark.parametrize(
    ("op", "given_node", "work"),
    [
        ("Conv", ([X, (4, 3, 3, 3)], {"pads": [1, 1, 1, 1]}), 4 * 8 * 8 * 3 * 9),
        ("Conv", ([X, (3, 1, 3, 3)], {"group": 3}), 3 * 6 * 6 * 9),
        ("ConvTranspose", ([X, (3, 5, 2, 2)], {"strides": [2, 2]}), 64 * 3 * 5 * 4),
        ("MaxPool", ([X], {"kernel_shape": [2, 2], "strides": [2, 2]}), 3 * 4 * 4 * 4),
        ("GlobalAveragePool", ([X],), math.prod(X)),
    ],
)
def test_work_is_counted_in_multiply_accumulates_or_elements(op, given_node, work):
    assert rule(op, *given_node).work == work


@pytest.mark.parametrize(
    ("op", "given_node", "problem"),
    [
        ("Conv", ([X, (1, 3, 3000, 3000)],), "larger than its input"),
        ("Conv", ([(1, 1, 224, 224), (1, 1, 3000, 3000)], {"pads": [1500] * 4}), "3000 × 3000 on 224 × 224 pixels is too much"),
        ("Conv", ([X, (4, 3, 3, 3)], {"pads": [1 << 40] * 4}), "its pads is"),
        ("Conv", ([X, (4, 3, 3, 3)], {"strides": [0, 0]}), "its strides is"),
        ("Conv", ([X, (4, 3, 3, 3)], {"dilations": 3}), "its dilations is"),
        ("Conv", ([X, (4, 3, 3, 3)], {"kernel_shape": [5, 5]}), "kernel_shape"),
        ("Conv", ([X, (4, 3, 0, 3)],), "its weight has the shape"),
        ("Conv", ([X, (4, 3, 3, 3)], {"group": 0}), "groups"),
        ("Conv", ([X, (4, 3, 3, 3)], {"auto_pad": b"SAME_UPPER"}), "automatic"),
        ("Conv", ([X, (4, 3, 3, 3), (5,)],), "bias"),
        ("Conv", ([X, (4, 3, 3)],), "its input and weight have the shapes"),
        ("Conv", ([(1, 3), (4, 3)],), "its input has the shape"),
        ("Conv", ([X],), "no input 1"),
        ("ConvTranspose", ([X, (3, 5, 2, 2)], {"output_padding": [1, 1]}), "its output_padding"),
        ("ConvTranspose", ([X, (3, 5, 2, 2)], {"output_shape": [9, 9]}), "output_shape"),
        ("ConvTranspose", ([X, (4, 5, 2, 2)],), "groups"),
        ("ConvTranspose", ([(1, 1, 4096, 4096), (1, 1, 64, 64)],), "is too much"),
        ("MaxPool", ([X], {"kernel_shape": [2, 2], "pads": [2, 2, 2, 2]}), "padding is larger"),
        ("MaxPool", ([X],), "kernel_shape"),
        ("LpPool", ([X], {"kernel_shape": [2, 2], "p": 0}), "its p"),
    ],
)
def test_window_that_does_not_fit_or_grows_too_much_is_refused(op, given_node, problem):
    with pytest.raises(StretchError, match=problem):
        rule(op, *given_node)


@given(st.data())
def test_windows_side_by_side_become_the_image_that_the_runtime_makes(data):
    axes = data.draw(st.integers(1, 3))
    kernel, strides, dilations = (lists(data.draw, axes, 1, high) for high in (3, 3, 2))
    pads = lists(data.draw, 2 * axes, 0, 1)
    image = [d * (k - 1) + 1 + data.draw(st.integers(0, 4)) for d, k in zip(dilations, kernel, strict=True)]
    reach = [n + pads[i] + pads[i + axes] - dilations[i] * (kernel[i] - 1) - 1 for i, n in enumerate(image)]
    windows = math.prod(room // stride + 1 for room, stride in zip(reach, strides, strict=True))
    attrs = {"strides": strides, "dilations": dilations, "pads": pads}
    columns = reals((data.draw(st.integers(1, 2)), 2 * math.prod(kernel), windows))
    agrees(Case("Col2Im", [columns, np.array(image), np.array(kernel)], attrs, stored=(1, 2), opset=18))


@pytest.mark.parametrize(
    ("shape", "image", "kernel", "problem"),
    [
        ((1, 8, 5), (3, 4), (2, 2), r"for 6 windows of 4 pixels"),
        ((1, 8, 6), (3, 4), (2, 2, 1), "an image of 3 × 4 with 2 × 2 × 1"),
        ((1, 8, 6), (3, 4), (0, 2), "an image of 3 × 4 with 0 × 2"),
        ((1, 8, 6), (3, 4), (4, 2), "window of 4 × 2 is larger"),
    ],
)
def test_windows_that_make_no_image_are_refused(shape, image, kernel, problem):
    given_node = ShapeNode((KnownTensor(shape), KnownTensor((len(image),), 7, image), KnownTensor((len(kernel),), 7, kernel)), {})
    with pytest.raises(StretchError, match=problem):
        RULES["Col2Im"](given_node)


modes = st.sampled_from(["nearest", "linear", "cubic"])
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
    return ShapeNode((KnownTensor(X), None, KnownTensor((len(scales),), 1, scales)), attrs or {})


@pytest.mark.parametrize(
    ("op", "given_node", "problem"),
    [
        ("Resize", scaled(1, 1, 1e9, 1e9), "its scales"),
        ("Resize", scaled(2, 2), "no scale for each axis"),
        ("Resize", scaled(1, 1, 0.01, 1), "it makes"),
        ("Resize", scaled(1, 1, 2, 2, attrs={"mode": b"best"}), "in the mode `best`"),
        ("Resize", scaled(1, 1, attrs={"axes": [2, 3]}), "along some axes"),
        ("Resize", scaled(1, 1, 2, 2, attrs={"coordinate_transformation_mode": b"tf_crop_and_resize"}), "it crops"),
        ("Resize", scaled(1, 1, 2, 2, attrs={"keep_aspect_ratio_policy": b"not_larger"}), "ratio of its sides"),
        ("Resize", node([X, None, (4,)]), "no constant"),
        ("Resize", node([X]), "it has no input 2"),
        ("GridSample", node([X, (1, 4, 4, 3)]), "its grid"),
    ],
)
def test_resizing_that_does_not_fit_or_grows_too_much_is_refused(op, given_node, problem):
    with pytest.raises(StretchError, match=problem):
        RULES[op](given_node)


def test_no_operator_is_both_known_and_refused():
    assert not REASONS.keys() & RULES.keys()


def test_operators_are_those_of_onnx():
    there = {schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain}
    assert REASONS.keys() | RULES.keys() <= there
