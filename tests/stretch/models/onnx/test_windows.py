"""Windows and resized images of ONNX files against ONNX Runtime."""

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from onnx import helper

from predictors.errors import StretchError
from stretch.models.onnx import read_module
from tests.scheduler.formats.onnx.shapes.oracle import Case, whole
from tests.scheduler.formats.onnx.shapes.test_windows import windows
from tests.stretch.models.onnx.oracle import agrees, computed, functions, net, random, save

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


X = (1, 4, 9, 8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("windows")


@given(windows("Conv"), st.integers(0, 99))
def test_convolution_over_one_to_three_axes_computes_what_the_runtime_does(folder, case, seed):
    case.inputs = [random(x.shape, seed + i) for i, x in enumerate(case.inputs)]
    agrees(folder, case)


@given(windows("MaxPool"), st.integers(0, 99))
def test_largest_elements_are_those_of_the_runtime(folder, case, seed):
    case.attrs["dilations"] = [1] * len(case.attrs["kernel_shape"])
    case.inputs = [random(case.inputs[0].shape, seed)]
    before, behind = np.array_split(case.attrs["pads"], 2)
    # What torch's pools do not take is padded before them, which is not the same where they round up.
    assume(not case.attrs["ceil_mode"] or ((before == behind).all() and (before <= np.array(case.attrs["kernel_shape"]) // 2).all()))
    assume(case.computed() is not None)
    agrees(folder, case)


@pytest.mark.representatives(5)
@pytest.mark.parametrize("pads", [[0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 1, 0]])
@pytest.mark.parametrize("counted", [0, 1])
@pytest.mark.parametrize("up", [0, 1])
def test_mean_over_a_window_is_that_of_the_runtime(tmp_path, pads, counted, up):
    attrs = {"kernel_shape": [3, 2], "strides": [2, 2], "pads": pads, "count_include_pad": counted, "ceil_mode": up}
    agrees(tmp_path, Case("AveragePool", [random(X)], attrs))


def test_uneven_padding_of_a_row_of_windows_is_refused_where_torch_has_none(tmp_path):
    for op, attrs in (("MaxPool", {"ceil_mode": 1}), ("AveragePool", {})):
        path = save(tmp_path / "m.onnx", Case(op, [random((1, 4, 9))], {"kernel_shape": [3], "strides": [2], "pads": [0, 1], **attrs}))
        with pytest.raises(StretchError, match="differs between sides"):
            read_module(path)


@pytest.mark.parametrize("groups", [1, 2])
def test_transposed_convolution_computes_what_the_runtime_does(tmp_path, groups):
    attrs = {"strides": [2, 3], "pads": [1, 0, 1, 0], "output_padding": [1, 2], "group": groups}
    agrees(tmp_path, Case("ConvTranspose", [random(X), random((4, 3, 3, 2), 1), random((3 * groups,), 2)], attrs))


@pytest.mark.representatives(4)
@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("more", [{}, {"pads": [1, 0, 1, 1], "strides": [2, 1]}, {"auto_pad": "SAME_UPPER"}], ids=str)
def test_norms_of_windows_are_those_of_the_runtime(tmp_path, p, more):
    agrees(tmp_path, Case("LpPool", [random(X)], {"kernel_shape": [3, 2], "p": p, **more}))
    agrees(tmp_path, Case("GlobalLpPool", [random(X)], {"p": p}))


@pytest.mark.parametrize("op", ["GlobalAveragePool", "GlobalMaxPool"])
def test_pool_over_the_whole_image_computes_what_the_runtime_does(tmp_path, op):
    agrees(tmp_path, Case(op, [random(X)]))


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (Case("Conv", [random(X), random((6, 4, 3, 3)), random((5,))]), r"its weights have the shape \[5\], \[6\] are needed"),
        (Case("Conv", [random(X), random((6, 4, 3))]), "its input and weight have the shapes"),
        (Case("Conv", [random(X), random((6, 4, 3, 3))], {"strides": [1]}), r"its strides is \[1\] for 2 axes"),
        (Case("Conv", [random(X), random((6, 4, 3, 3))], {"pads": [1, 1]}), r"its pads are \[1, 1\] for 2 axes"),
        (Case("Conv", [random(X), random((6, 4, 30, 30))]), "torch does not take what it reads"),
        (Case("MaxPool", [random(X)], {"kernel_shape": [2, 2]}, results=2), "places of the largest"),
        (Case("GlobalMaxPool", [random((1, 3, 5))]), "is no image"),
        (Case("LpPool", [random(X)], {"kernel_shape": [2, 2], "ceil_mode": 1}), "has gaps or overhangs"),
        (Case("GlobalLpPool", [random(X)], {"p": 0}), "it is of the norm 0"),
        (Case("ConvTranspose", [random(X), random((4, 3, 3, 3))], {"output_shape": [9, 9]}), "leaves its padding"),
    ],
)
def test_window_that_torch_has_not_is_refused_with_its_node(tmp_path, case, reason):
    path = save(tmp_path / "m.onnx", case)
    with pytest.raises(StretchError, match=rf"node `{case.op}_0` \({case.op}\) of .*m\.onnx cannot be read: .*{reason}"):
        read_module(path)


RESIZING_X = (1, 4, 6, 3)
COORDINATES = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"]


@pytest.fixture(scope="module")
def folder_of_resizing(tmp_path_factory):
    return tmp_path_factory.mktemp("resize")


SIDES = st.tuples(st.integers(2, 9), st.integers(2, 9))


@pytest.mark.parametrize("opset", [9, 10])
def test_resizing_of_older_opsets_computes_what_the_runtime_does(tmp_path, opset):
    scales = np.array([1, 1, 2, 3], np.float32)
    agrees(tmp_path, Case("Upsample" if opset == 9 else "Resize", [random(RESIZING_X), scales], {"mode": "nearest"}, opset=opset))


@given(SIDES, SIDES, st.sampled_from(COORDINATES), st.sampled_from(["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"]))
def test_nearest_pixels_are_those_of_the_runtime(folder_of_resizing, old, new, coordinates, how):
    assume(old != new)
    attrs = {"mode": "nearest", "coordinate_transformation_mode": coordinates, "nearest_mode": how}
    agrees(folder_of_resizing, Case("Resize", [random((1, 2, *old)), None, None, whole(1, 2, *new)], attrs))


@given(SIDES, st.sampled_from([0.5, 0.75, 1.25, 1.5, 2.0, 2.5]), st.sampled_from([0.5, 1.0, 1.75, 3.0]), st.sampled_from(COORDINATES))
def test_smooth_resizing_by_fractions_computes_what_the_runtime_does(folder_of_resizing, old, down, across, coordinates):
    assume((int(old[0] * down), int(old[1] * across)) != old)
    attrs = {"mode": "linear", "coordinate_transformation_mode": coordinates}
    agrees(folder_of_resizing, Case("Resize", [random((1, 2, *old)), None, np.array([1, 1, down, across], np.float32)], attrs))


@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
def test_image_that_keeps_its_size_stays_as_it_is(tmp_path, mode):
    nodes = [helper.make_node("Resize", ["x", "", "scales"], ["r"], mode=mode), helper.make_node("Tanh", ["r"], ["y"])]
    model = net(*nodes, stored={"scales": np.array([1, 1, 1.2, 1.3], np.float32)}, shape=(1, 2, 4, 3))
    onnx.save(model, str(tmp_path / "m.onnx"))
    x = random((1, 2, 4, 3))
    [want] = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(computed(tmp_path / "m.onnx", x), want, rtol=1e-5, atol=1e-6)


def test_pixels_that_are_repeated_are_torchs_own(tmp_path):
    for coordinates, how in (("asymmetric", "floor"), ("half_pixel", "round_prefer_floor")):
        attrs = {"mode": "nearest", "coordinate_transformation_mode": coordinates, "nearest_mode": how}
        assert functions(agrees(tmp_path, Case("Resize", [random(RESIZING_X), None, np.array([1, 1, 2, 3], np.float32)], attrs))) == [
            "interpolate"
        ]


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (Case("Resize", [random(RESIZING_X), None, None, whole(1, 8, 6, 3)]), r"it resizes \[1, 4, 6, 3\] to \[1, 8, 6, 3\]"),
        (Case("Resize", [random(RESIZING_X), None, np.ones(2, np.float32)]), "2 scales for 4 axes"),
        (
            Case("Resize", [random(RESIZING_X), None, np.array([1, 1, 1.2, 2], np.float32)], {"mode": "cubic"}),
            "by 1.2, 2, no whole number of pixels",
        ),
        (Case("Resize", [random(RESIZING_X), None, None, whole(1, 4, 5, 5)], {"mode": "cubic", "cubic_coeff_a": -0.5}), "not torch's"),
        (
            Case(
                "Resize",
                [random(RESIZING_X), None, None, whole(1, 4, 5, 5)],
                {"mode": "cubic", "coordinate_transformation_mode": "asymmetric"},
            ),
            "coordinates `asymmetric`",
        ),
        (
            Case("Resize", [random(RESIZING_X), None, None, whole(1, 4, 5, 5)], {"coordinate_transformation_mode": "tf_crop_and_resize"}),
            "coordinates `tf_crop_and_resize`",
        ),
    ],
)
def test_resizing_that_torch_has_not_is_refused(tmp_path, case, reason):
    with pytest.raises(StretchError, match=reason):
        read_module(save(tmp_path / "m.onnx", case))
