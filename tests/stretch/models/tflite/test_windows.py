import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from predictors.errors import StretchError
from stretch.models.tflite import read_module
from tests.stretch.models.onnx.graphs import functions
from tests.stretch.models.tflite.files import agrees, op, random, write

pytestmark = pytest.mark.torch
pytest.importorskip("ai_edge_litert")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tflite")


WINDOWS = st.fixed_dictionaries(
    {
        "padding": st.integers(0, 1),
        "stride_h": st.integers(1, 3),
        "stride_w": st.integers(1, 3),
        "fused_activation_function": st.sampled_from([0, 1, 2, 3]),
    }
)


def fits(settings, size, kernel, dilation=(1, 1)):
    return settings["padding"] == 0 or all(n > d * (k - 1) for n, k, d in zip(size, kernel, dilation, strict=True))


@given(WINDOWS, st.tuples(st.integers(1, 4), st.integers(1, 4)), st.integers(1, 2), st.booleans())
def test_convolution_computes_what_the_runtime_does(folder, settings, kernel, dilation, deep):
    # runtimes dilate windows of stride 1 alone
    assume(dilation == 1 or settings["stride_h"] == settings["stride_w"] == 1)
    assume(fits(settings, (6, 5), kernel, (dilation, dilation)))
    weight = random((1, *kernel, 8) if deep else (3, *kernel, 4), 1)
    stored = {"w": weight, "b": random((weight.shape[3 if deep else 0],), 2)}
    more = {"dilation_h_factor": dilation, "dilation_w_factor": dilation, **({"depth_multiplier": 2} if deep else {})}
    code, table = ("DEPTHWISE_CONV_2D", "DepthwiseConv2DOptions") if deep else ("CONV_2D", "Conv2DOptions")
    agrees(write(folder / "conv.tflite", op(code, ["x", "w", "b"], table=table, **settings, **more), stored=stored))


@given(WINDOWS, st.tuples(st.integers(1, 4), st.integers(1, 4)), st.sampled_from(["MAX_POOL_2D", "AVERAGE_POOL_2D"]))
def test_pool_computes_what_the_runtime_does(folder, settings, kernel, code):
    assume(fits(settings, (6, 5), kernel))
    more = {"filter_height": kernel[0], "filter_width": kernel[1]}
    agrees(write(folder / "pool.tflite", op(code, ["x"], table="Pool2DOptions", **settings, **more)))


@given(WINDOWS, st.tuples(st.integers(1, 4), st.integers(1, 4)), st.booleans(), st.data())
def test_transposed_convolution_computes_what_the_runtime_does(folder, settings, kernel, bias, data):
    settings = {**settings, "fused_activation_function": 0}
    steps = (settings["stride_h"], settings["stride_w"])
    if settings["padding"] == 0:
        # sizes that a convolution with SAME padding would make the input of
        made = [(n - 1) * s + data.draw(st.integers(1, s)) for n, s in zip((6, 5), steps, strict=True)]
    else:
        made = [(n - 1) * s + k for n, s, k in zip((6, 5), steps, kernel, strict=True)]
    stored = {"shape": np.array([1, *made, 3], np.int32), "w": random((3, *kernel, 4), 1), "b": random((3,), 2)}
    reads = ["shape", "w", "x", "b"] if bias else ["shape", "w", "x"]
    agrees(write(folder / "up.tflite", op("TRANSPOSE_CONV", reads, table="TransposeConvOptions", **settings), stored=stored))


@pytest.mark.parametrize(("widths", "stride"), [([[0, 0], [1, 1], [1, 1], [0, 0]], 1), ([[0, 0], [0, 1], [1, 0], [0, 0]], 2)])
def test_padding_before_a_convolution_is_its_own(tmp_path, widths, stride):
    settings = {"padding": 1, "stride_h": stride, "stride_w": stride}
    operators = [op("PAD", ["x", "widths"], ["p"]), op("CONV_2D", ["p", "w", "b"], table="Conv2DOptions", **settings)]
    stored = {"widths": np.array(widths, np.int32), "w": random((6, 3, 3, 4), 1), "b": random((6,), 2)}
    found = agrees(write(tmp_path / "m.tflite", *operators, stored=stored))
    assert functions(found) in (["Conv2d"], ["PaddedConv2d"])


@pytest.mark.parametrize("rectified", [False, True])
def test_zeros_before_a_maximum_are_its_padding_only_where_nothing_is_lower(tmp_path, rectified):
    pool = {"padding": 1, "stride_h": 2, "stride_w": 2, "filter_height": 3, "filter_width": 3}
    operators = [
        op("RELU" if rectified else "NEG", ["x"], ["r"]),
        op("PAD", ["r", "widths"], ["p"]),
        op("MAX_POOL_2D", ["p"], table="Pool2DOptions", **pool),
    ]
    found = agrees(write(tmp_path / "m.tflite", *operators, stored={"widths": np.array([[0, 0], [1, 1], [1, 1], [0, 0]], np.int32)}))
    assert ("pad" in functions(found)) != rectified


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"stride_h": 0, "stride_w": 1}, r"its stride is \[0, 1\]"),
        ({"stride_h": 1, "stride_w": 1, "padding": 7}, "its padding is number 7"),
        ({"stride_h": 1, "stride_w": 1, "fused_activation_function": 5}, "its activation is number 5, which torch has not"),
    ],
)
def test_settings_that_are_none_are_refused(tmp_path, settings, problem):
    stored = {"w": random((6, 3, 3, 4), 1), "b": random((6,), 2)}
    path = write(tmp_path / "m.tflite", op("CONV_2D", ["x", "w", "b"], table="Conv2DOptions", **settings), stored=stored)
    with pytest.raises(StretchError, match=rf"operator `y` \(CONV_2D\) of .*m\.tflite cannot be read: {problem}"):
        read_module(path)
