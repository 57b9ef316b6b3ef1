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
from tests.stretch.models.onnx.graphs import computed, functions, net
from tests.stretch.models.onnx.oracle import agrees, random, save

pytestmark = pytest.mark.torch

X = (1, 4, 6, 3)
COORDINATES = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("resize")


SIDES = st.tuples(st.integers(2, 9), st.integers(2, 9))


@pytest.mark.parametrize("opset", [9, 10])
def test_resizing_of_older_opsets_computes_what_the_runtime_does(tmp_path, opset):
    scales = np.array([1, 1, 2, 3], np.float32)
    agrees(tmp_path, Case("Upsample" if opset == 9 else "Resize", [random(X), scales], {"mode": "nearest"}, opset=opset))


@given(SIDES, SIDES, st.sampled_from(COORDINATES), st.sampled_from(["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"]))
def test_nearest_pixels_are_those_of_the_runtime(folder, old, new, coordinates, how):
    assume(old != new)
    attrs = {"mode": "nearest", "coordinate_transformation_mode": coordinates, "nearest_mode": how}
    agrees(folder, Case("Resize", [random((1, 2, *old)), None, None, whole(1, 2, *new)], attrs))


@given(SIDES, st.sampled_from([0.5, 0.75, 1.25, 1.5, 2.0, 2.5]), st.sampled_from([0.5, 1.0, 1.75, 3.0]), st.sampled_from(COORDINATES))
def test_smooth_resizing_by_fractions_computes_what_the_runtime_does(folder, old, down, across, coordinates):
    assume((int(old[0] * down), int(old[1] * across)) != old)
    attrs = {"mode": "linear", "coordinate_transformation_mode": coordinates}
    agrees(folder, Case("Resize", [random((1, 2, *old)), None, np.array([1, 1, down, across], np.float32)], attrs))


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
        assert functions(agrees(tmp_path, Case("Resize", [random(X), None, np.array([1, 1, 2, 3], np.float32)], attrs))) == ["interpolate"]


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (Case("Resize", [random(X), None, None, whole(1, 8, 6, 3)]), r"it resizes \[1, 4, 6, 3\] to \[1, 8, 6, 3\]"),
        (Case("Resize", [random(X), None, np.ones(2, np.float32)]), "2 scales for 4 axes"),
        (
            Case("Resize", [random(X), None, np.array([1, 1, 1.2, 2], np.float32)], {"mode": "cubic"}),
            "by 1.2, 2, no whole number of pixels",
        ),
        (Case("Resize", [random(X), None, None, whole(1, 4, 5, 5)], {"mode": "cubic", "cubic_coeff_a": -0.5}), "not torch's"),
        (
            Case("Resize", [random(X), None, None, whole(1, 4, 5, 5)], {"mode": "cubic", "coordinate_transformation_mode": "asymmetric"}),
            "coordinates `asymmetric`",
        ),
        (
            Case("Resize", [random(X), None, None, whole(1, 4, 5, 5)], {"coordinate_transformation_mode": "tf_crop_and_resize"}),
            "coordinates `tf_crop_and_resize`",
        ),
    ],
)
def test_resizing_that_torch_has_not_is_refused(tmp_path, case, reason):
    with pytest.raises(StretchError, match=reason):
        read_module(save(tmp_path / "m.onnx", case))
