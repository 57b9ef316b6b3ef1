"""TFLite files against LiteRT: each operator, and whole networks of nn-stretch and of other converters."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from predictors.errors import StretchError, UsageError
from scheduler.formats.tflite import ANY_TFLITE
from stretch.export.onnx import save_onnx, to_numpy, to_onnx
from stretch.export.tflite import read_source
from stretch.network.capture import capture
from stretch.network.models.builder import Builder
from stretch.network.models.load import load_model
from stretch.network.models.tflite import TfliteSite, TfliteView, align_operands, read_module
from tests.scheduler.delegates import graphs
from tests.stretch.network.models.onnx.oracle import check_numbers, functions, random
from tests.stretch.network.models.onnx.test_network import canonical
from tests.stretch.network.models.tflite.files import agrees, model, op, ran, to_first, write

pytest.importorskip("ai_edge_litert")
pytestmark = pytest.mark.torch


X = (1, 6, 5, 4)


def whole(*numbers):
    return np.array(numbers, np.int32)


@dataclass
class File:
    """A file of some operators, its input, and the expected torch functions, if known."""

    operators: list
    more: dict[str, Any]
    x: np.ndarray | None = None
    calls: list[str] | None = None

    def __str__(self):
        """Name the operators and their settings."""
        return "-".join(f"{code} {settings}" for code, _, _, settings in self.operators)


def file(*operators, x=None, calls=None, **options):
    """Describe a file whose input has the shape of `x`."""
    return File(list(operators), options | ({} if x is None else {"shape": x.shape}), x, calls)


UNARY = ["ABS", "CEIL", "COS", "ELU", "EXP", "FLOOR", "HARD_SWISH", "LOGISTIC", "NEG", "RELU", "RELU6", "RELU_N1_TO_1", "ROUND", "SIN"]
UNARY += ["TANH", "SIGN", "RELU_0_TO_1", "SQUARE"]
FAR_FROM_ZERO = np.where(np.abs(random(X)) < 0.1, np.float32(0.5), random(X))
THREE, SIX = np.float32(3), np.float32(1 / 6)

ELEMENTS = [
    *[file(op(code, ["x"]), x=random(shape, scale=2)) for code in UNARY for shape in (X, (2, 7))],
    *[file(op(code, ["x"]), x=np.abs(random(X)) + 0.1) for code in ("LOG", "SQRT", "RSQRT")],
    *[
        file(op(code, reads), x=FAR_FROM_ZERO, stored={"c": np.abs(random(other, 1)) + np.float32(0.5)})
        for code in ("ADD", "SUB", "MUL", "DIV", "MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE")
        for other in ((), (4,), (5, 1), (1, 1, 1, 4), X, (6, 5, 4))
        for reads in (["x", "c"], ["c", "x"])
    ],
    file(op("MEAN", ["x", "axes"], ["m"]), op("MUL", ["x", "m"]), stored={"axes": whole(1, 2)}),
    *[file(op("LEAKY_RELU", ["x"], alpha=alpha)) for alpha in (0.0, 0.2)],
    *[file(op("GELU", ["x"], approximate=approximate)) for approximate in (False, True)],
    *[file(op("PRELU", ["x", "a"]), stored={"a": random(slope, 1)}, calls=["PReLU"]) for slope in ((1, 1, 4), (4,), (1, 1, 1))],
    file(op("PRELU", ["x", "a"]), stored={"a": random((6, 5, 4), 1)}),
    *[
        file(
            op(code, ["x", "c"], ["b"]),
            op("SELECT_V2", ["b", "x", "d"]),
            stored={"c": THREE / 30, "d": random((4,), 1)},
            kinds={"b": "bool"},
        )
        for code in ("EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL", "NOT_EQUAL")
    ],
    file(op("POW", ["x", "c"]), stored={"c": np.full((1,), 2.0, np.float32)}),
    file(
        op("MAXIMUM", ["x", "low"], ["a"]),
        op("MINIMUM", ["a", "high"]),
        stored={"low": np.float32(-0.5), "high": np.float32(0.7)},
        calls=["clamp"],
    ),
    file(op("LOGISTIC", ["x"], ["g"]), op("MUL", ["x", "g"]), x=random(X, scale=3), calls=["silu"]),
    file(
        op("ADD", ["x", "three"], ["a"], fused_activation_function=3),
        op("MUL", ["a", "six"]),
        x=random(X, scale=3),
        stored={"three": THREE, "six": SIX},
        calls=["hardsigmoid"],
    ),
    file(
        op("ADD", ["x", "three"], ["a"], fused_activation_function=3),
        op("MUL", ["x", "a"], ["b"]),
        op("MUL", ["six", "b"]),
        x=random(X, scale=3),
        stored={"three": THREE, "six": SIX},
        calls=["hardswish"],
    ),
]

RESPONSE = {"radius": 1, "bias": 1.0, "alpha": 0.3, "beta": 0.5}
ALONG_AXES = [
    *[file(op("SOFTMAX", ["x"], beta=beta), x=random(shape)) for shape in (X, (2, 7), (1, 3, 8)) for beta in (1.0, 0.5)],
    file(op("LOG_SOFTMAX", ["x"])),
    file(op("L2_NORMALIZATION", ["x"])),
    file(op("LOCAL_RESPONSE_NORMALIZATION", ["x"], **RESPONSE)),
    *[
        file(
            op(code, ["x", "axis"], ["i"], output_type=2),
            op("CAST", ["i"], in_data_type=2, out_data_type=0),
            stored={"axis": whole(3)},
            kinds={"i": "int32"},
        )
        for code in ("ARG_MAX", "ARG_MIN")
    ],
    *[
        file(
            op("FULLY_CONNECTED", ["x", "w", bias], keep_num_dims=keep, fused_activation_function=1),
            x=random((1, 5, 7)),
            stored={"w": random((3, 7), 1), "b": random((3,), 2)},
        )
        for bias in ("b", None)
        for keep in (False, True)
    ],
    *[
        file(op("BATCH_MATMUL", ["x", "c"], adj_x=left, adj_y=right), x=random(shape), stored={"c": random(other, 1)})
        for left, right, shape, other in (
            (False, False, (2, 3, 5), (2, 5, 4)),
            (False, True, (2, 3, 5), (2, 4, 5)),
            (True, False, (2, 5, 3), (2, 5, 4)),
        )
    ],
]

ROWS = ((0, 0), (1, 2), (0, 1), (0, 0))
ONE_SIDE = ((0, 0), (0, 1), (0, 0), (1, 0))
MOVES = [
    *[
        file(op("RESHAPE", ["x", "s"]), stored={"s": whole(*shape)})
        for shape in ((1, 120), (1, 30, 4), (6, 20), (1, 5, 6, 4), (1, -1, 2), (2, 3, 5, 2, 2))
    ],
    *[
        file(op("ABS", ["x"], ["a"]), op("CONCATENATION", ["x", "c", "a"], axis=axis), stored={"c": random(X, 1)})
        for axis in (0, 1, 2, 3, -1)
    ],
    *[
        file(op("SPLIT", ["axis", "x"], ["a", "b"], num_splits=2), op("SUB", ["b", "a"]), stored={"axis": np.array(axis, np.int32)})
        for axis in (1, 3, -1)
    ],
    file(
        op("SPLIT_V", ["x", "sizes", "axis"], ["a", "b"], num_splits=2),
        op("CONCATENATION", ["b", "a"], axis=3),
        stored={"sizes": whole(1, 3), "axis": np.array(3, np.int32)},
    ),
    file(
        op("ABS", ["x"], ["a"]),
        op("PACK", ["x", "a"], ["p"], values_count=2, axis=2),
        op("UNPACK", ["p"], ["b", "c"], num=2, axis=2),
        op("SUB", ["c", "b"]),
    ),
    *[
        file(op("GATHER", ["x", "i"], axis=axis), stored={"i": indices})
        for indices in (whole(3, 0, 0), np.array(2, np.int32), np.array([[1, 0], [2, 3]], np.int32))
        for axis in (1, 3)
    ],
    *[file(op("PAD", ["x", "w"]), stored={"w": whole(*widths)}) for widths in (ROWS, ((0, 0), (0, 0), (0, 0), (2, 1)), ONE_SIDE)],
    *[file(op("PADV2", ["x", "w", "v"]), stored={"w": whole(*widths), "v": np.float32(0.7)}) for widths in (ROWS, ONE_SIDE)],
    # torch mirrors only the axes of an image
    file(op("MIRROR_PAD", ["x", "w"]), stored={"w": whole(*ROWS)}),
    *[
        file(
            op("DEPTH_TO_SPACE", ["x"], ["d"], block_size=2),
            op("SPACE_TO_DEPTH", ["d"], ["s"], block_size=2),
            op("DEPTH_TO_SPACE", ["s"], ["y"], block_size=block),
        )
        for block in (2, 1)
    ],
    file(
        op("EXPAND_DIMS", ["x", "a"], ["e"]),
        op("SQUEEZE", ["e"], ["s"], squeeze_dims=whole(0, 2)),
        op("NEG", ["s"]),
        stored={"a": np.array(2, np.int32)},
    ),
    *[
        file(op(code, ["x", "n"]), stored={"n": numbers})
        for code, numbers in (("TILE", whole(1, 2, 1, 3)), ("BROADCAST_TO", whole(2, 6, 5, 4)), ("REVERSE_V2", whole(3)))
    ],
    file(
        op("SHAPE", ["x"], ["shape"], out_type=2),
        op("STRIDED_SLICE", ["shape", "b", "e", "s"], ["n"]),
        op("CONCATENATION", ["n", "rest"], ["new"], axis=0),
        op("RESHAPE", ["x", "new"]),
        stored={"b": whole(0), "e": whole(1), "s": whole(1), "rest": whole(-1)},
        kinds={"shape": "int32", "n": "int32", "new": "int32"},
    ),
]


@pytest.mark.representatives(75)
@pytest.mark.parametrize("case", [*ELEMENTS, *ALONG_AXES, *MOVES], ids=str)
def test_operator_computes_what_the_runtime_does(tmp_path, case):
    module = agrees(write(tmp_path / "m.tflite", *case.operators, **case.more), case.x)
    assert case.calls is None or functions(module) == case.calls


@pytest.mark.representatives(14)
@pytest.mark.parametrize("code", ["MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD"])
@pytest.mark.parametrize("axes", [(1, 2), (3,), (-1,), (1,), (1, 2, 3), (2, 1)])
@pytest.mark.parametrize("keep", [False, True])
def test_reduction_computes_what_the_runtime_does(tmp_path, code, axes, keep):
    path = write(tmp_path / "m.tflite", op(code, ["x", "axes"], keep_dims=keep), stored={"axes": whole(*axes)})
    result = agrees(path)
    if code == "MEAN" and set(axes) == {1, 2}:
        assert functions(result)[0] == "AdaptiveAvgPool2d"


@pytest.mark.parametrize("reshaped", [False, True])
@pytest.mark.parametrize("active", [False, True])
def test_linear_layer_after_flattening_has_its_columns_in_the_order_of_torch(tmp_path, reshaped, active):
    steps = [("RESHAPE", ["shape"], "r")] * reshaped + [("RELU", [], "a")] * active + [("FULLY_CONNECTED", ["w", "b"], "y")]
    reads = ["x", *(writes for _, _, writes in steps)]
    operators = [op(code, [read, *stored_inputs], [writes]) for read, (code, stored_inputs, writes) in zip(reads, steps, strict=False)]
    stored = {"shape": whole(1, 120), "w": random((3, 120), 1), "b": random((3,), 2)}
    called = functions(agrees(write(tmp_path / "m.tflite", *operators, stored=stored)))
    assert ("permute" in called, called[-1]) == (False, "Linear")


def test_custom_operator_named_like_a_builtin_is_refused_as_custom(tmp_path):
    tables = model(op("RELU", ["x"], ["r"]), op("NEG", ["r"]))
    tables["operator_codes"][1] |= {"builtin_code": 32, "deprecated_builtin_code": 32, "custom_code": "RELU"}
    (tmp_path / "m.tflite").write_bytes(bytes(ANY_TFLITE.encode(tables)))
    with pytest.raises(StretchError, match=r"operator `y` \(custom RELU\) of .*m\.tflite cannot be read: it is a custom") as refused:
        read_module(tmp_path / "m.tflite")
    assert "own operators" in refused.value.hint


def test_row_reshaped_to_the_image_needs_no_permutation(tmp_path):
    operators = [op("RESHAPE", ["x", "a"], ["r"]), op("RELU", ["r"], ["p"]), op("RESHAPE", ["p", "b"])]
    result = agrees(write(tmp_path / "m.tflite", *operators, stored={"a": whole(1, 120), "b": whole(*X)}))
    assert "permute" not in functions(result)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tflite")


@given(st.permutations(range(4)), st.permutations(range(4)))
def test_transpositions_compute_what_the_runtime_does(folder, first, second):
    operators = [op("TRANSPOSE", ["x", "a"], ["t"]), op("NEG", ["t"], ["n"]), op("TRANSPOSE", ["n", "b"])]
    agrees(write(folder / "order.tflite", *operators, stored={"a": whole(*first), "b": whole(*second)}))


@given(st.data())
def test_slice_computes_what_the_runtime_does(folder, data):
    begins = [data.draw(st.integers(0, n - 1)) for n in X]
    sizes = [data.draw(st.sampled_from([-1, *range(1, n - begin + 1)])) for n, begin in zip(X, begins, strict=True)]
    stored = {"b": whole(*begins), "s": whole(*sizes)}
    agrees(write(folder / "slice.tflite", op("SLICE", ["x", "b", "s"], ["p"]), op("NEG", ["p"]), stored=stored))


@given(st.data())
def test_strided_slice_computes_what_the_runtime_does(folder, data):
    begins = [data.draw(st.integers(-n, n - 1)) for n in X]
    ends = [data.draw(st.integers(begin % n + 1, n)) for n, begin in zip(X, begins, strict=True)]
    strides = [data.draw(st.integers(1, 3)) for _ in X]
    masks = {f"{name}_mask": data.draw(st.integers(0, 15)) for name in ("begin", "end", "shrink_axis")}
    shown = range(*slice(None if masks["begin_mask"] >> 1 & 1 else begins[1], None, 1).indices(6))
    if masks["begin_mask"] & masks["shrink_axis_mask"] or not shown:
        masks["begin_mask"] &= ~masks["shrink_axis_mask"]
    stored = {"b": whole(*begins), "e": whole(*ends), "s": whole(*strides)}
    # an axis that is removed is read at one index, and runtimes require a stride of 1
    stored["s"][[bool(masks["shrink_axis_mask"] >> i & 1) for i in range(4)]] = 1
    operators = [op("STRIDED_SLICE", ["x", "b", "e", "s"], ["p"], **masks), op("NEG", ["p"])]
    agrees(write(folder / "strided.tflite", *operators, stored=stored))


@pytest.mark.parametrize(
    ("operator", "stored", "problem"),
    [
        (op("RESHAPE", ["x", "n"]), whole(7, 7), r"it makes \[7, 7\] of \[1, 6, 5, 4\]"),
        (op("RESHAPE", ["x", "n"]), whole(-1, -1), "it makes the shape"),
        (op("RESHAPE", ["x", "n"]), whole(0, -1), "it makes"),
        (op("TRANSPOSE", ["x", "n"]), whole(0, 0, 1, 2), "it orders 4 axes"),
        (op("GATHER", ["x", "n"], axis=1), whole(6), "it reads beyond an axis of 6"),
        (op("SLICE", ["x", "n", "n"]), whole(0, 1), r"it cuts \[0, 1\] and \[0, 1\] out of"),
        (op("PAD", ["x", "n"]), whole(0, 1), "it pads"),
        (op("MEAN", ["x", "n"]), whole(9), r"it has the axes \[9\] of 4"),
        (op("TILE", ["x", "n"]), whole(1, 1 << 20, 1 << 20, 1), "it makes a tensor of|torch does not take"),
        (op("DEPTH_TO_SPACE", ["x"], block_size=3), whole(0), "over blocks of 3"),
        (op("FULLY_CONNECTED", ["x", "n", None], weights_format=1), random((3, 4)), "shuffled for one runtime"),
        (op("TOPK_V2", ["x", "n"]), np.array(2, np.int32), r"operator `y` \(TOPK_V2\) of .*m\.tflite cannot be read: there is no rule"),
        (op("RESIZE_BILINEAR", ["x", "n"], align_corners=True, half_pixel_centers=True), whole(3, 3), "the corners and the centres"),
        *[(op("RESIZE_BILINEAR", ["x", "n"]), whole(*size), "it resizes to") for size in ((0, 3), (3,), (1 << 20, 1))],
        *[
            (op("CONV_2D", ["x", "n", None], **{"stride_h": 1, "stride_w": 1} | settings), random((6, 3, 3, 4)), problem)
            for settings, problem in (
                ({"stride_h": 0}, r"its stride is \[0, 1\]"),
                ({"padding": 7}, "its padding is number 7"),
                ({"fused_activation_function": 5}, "its activation is number 5, which torch has not"),
            )
        ],
    ],
)
def test_operator_with_inconsistent_settings_is_refused(tmp_path, operator, stored, problem):
    with pytest.raises(StretchError, match=problem) as caught:
        read_module(write(tmp_path / "m.tflite", operator, stored={"n": stored}))
    assert "\n" not in caught.value.message


B = Builder((1, 5))


def site(*inputs, **settings):
    return TfliteSite(inputs, "OP", "name", settings, 1, B)


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: site(TfliteView(B.inputs["x"]), None).view(1), "no input 1"),
        (lambda: site(TfliteView(B.inputs["x"])).image(), "which is no image"),
        (lambda: site(TfliteView(B.inputs["x"])).require_stored(0, "weight"), "its weight depends on the network's inputs"),
        (lambda: site(fused_activation_function=9).apply_activation(B.inputs["x"]), "activation is number 9"),
        (lambda: align_operands(site(np.zeros(3, np.float32)), (0,)), "no tensor of the network"),
    ],
)
def test_missing_input_or_tensor_that_is_no_image_is_refused(call, reason):
    with pytest.raises(StretchError, match=reason):
        call()


WAYS = [{}, {"align_corners": True}, {"half_pixel_centers": True}]


@pytest.mark.representatives(10)
@pytest.mark.parametrize("alignment", WAYS, ids=str)
@pytest.mark.parametrize("size", [(12, 10), (3, 2), (7, 9), (6, 5), (1, 1), (9, 4)])
@pytest.mark.parametrize("code", ["RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"])
def test_resizing_computes_what_the_runtime_does(tmp_path, alignment, size, code):
    result = agrees(write(tmp_path / "m.tflite", op(code, ["x", "s"], **alignment), stored={"s": np.array(size, np.int32)}))
    if (code == "RESIZE_BILINEAR" and alignment and size != X[1:3]) or (
        size == (12, 10) and not alignment.get("align_corners") and code == "RESIZE_NEAREST_NEIGHBOR"
    ):
        assert functions(result) == ["interpolate"]


WINDOWS = st.fixed_dictionaries(
    {
        "padding": st.integers(0, 1),
        "stride_h": st.integers(1, 3),
        "stride_w": st.integers(1, 3),
        "fused_activation_function": st.sampled_from([0, 1, 2, 3]),
    }
)


def window_fits(settings, size, kernel, dilation=(1, 1)):
    return settings["padding"] == 0 or all(n > d * (k - 1) for n, k, d in zip(size, kernel, dilation, strict=True))


@given(WINDOWS, st.tuples(st.integers(1, 4), st.integers(1, 4)), st.integers(1, 2), st.booleans())
def test_convolution_computes_what_the_runtime_does(folder, settings, kernel, dilation, deep):
    # runtimes dilate only windows of stride 1
    assume(dilation == 1 or settings["stride_h"] == settings["stride_w"] == 1)
    assume(window_fits(settings, (6, 5), kernel, (dilation, dilation)))
    weight = random((1, *kernel, 8) if deep else (3, *kernel, 4), 1)
    stored = {"w": weight, "b": random((weight.shape[3 if deep else 0],), 2)}
    options = settings | {"dilation_h_factor": dilation, "dilation_w_factor": dilation, **({"depth_multiplier": 2} if deep else {})}
    agrees(write(folder / "conv.tflite", op("DEPTHWISE_CONV_2D" if deep else "CONV_2D", ["x", "w", "b"], **options), stored=stored))


@given(WINDOWS, st.tuples(st.integers(1, 4), st.integers(1, 4)), st.sampled_from(["MAX_POOL_2D", "AVERAGE_POOL_2D"]))
def test_pool_computes_what_the_runtime_does(folder, settings, kernel, code):
    assume(window_fits(settings, (6, 5), kernel))
    window = {"filter_height": kernel[0], "filter_width": kernel[1]}
    agrees(write(folder / "pool.tflite", op(code, ["x"], **settings, **window)))


@given(WINDOWS, st.tuples(st.integers(1, 4), st.integers(1, 4)), st.booleans(), st.data())
def test_transposed_convolution_computes_what_the_runtime_does(folder, settings, kernel, bias, data):
    settings = {**settings, "fused_activation_function": 0}
    steps = (settings["stride_h"], settings["stride_w"])
    if settings["padding"] == 0:
        # sizes from which a convolution with SAME padding gives the input size
        rows = [(n - 1) * s + data.draw(st.integers(1, s)) for n, s in zip((6, 5), steps, strict=True)]
    else:
        rows = [(n - 1) * s + k for n, s, k in zip((6, 5), steps, kernel, strict=True)]
    stored = {"shape": np.array([1, *rows, 3], np.int32), "w": random((3, *kernel, 4), 1), "b": random((3,), 2)}
    reads = ["shape", "w", "x", "b"] if bias else ["shape", "w", "x"]
    agrees(write(folder / "up.tflite", op("TRANSPOSE_CONV", reads, **settings), stored=stored))


@pytest.mark.parametrize("name", ["tiny_resnet", "tiny_mobilenet", "tiny_efficientnet", "tiny_regnet"])
def test_file_of_a_network_has_the_graph_of_its_module(tmp_path, name):
    """nn-stretch wrote the file."""
    shape = (1, 3, 32, 32)
    captured = capture(load_model(name, weights="none").module, shape)
    save_onnx(to_onnx(captured.graph, to_numpy(captured.weights)), tmp_path / "m.onnx")
    source = read_source(tmp_path / "m.onnx")
    (tmp_path / "m.tflite").write_bytes(graphs.tflite_bytes(source.graph, source))
    result = read_module(tmp_path / "m.tflite")
    assert canonical(capture(result, shape).graph) == canonical(captured.graph)
    check_numbers(result, captured.module, torch.from_numpy(random(shape)))


def test_weights_quantised_per_channel_are_those_of_the_runtime(tmp_path):
    """Only the weights are int8 (dynamic-range quantisation)."""
    weight = np.random.default_rng(1).integers(-127, 128, (3, 3, 3, 4)).astype(np.int8)
    scales = {"w": (np.array([0.01, 0.02, 0.005], np.float32), np.zeros(3, np.int64), 0)}
    operators = [op("DEQUANTIZE", ["w"], ["r"]), op("CONV_2D", ["x", "r", "b"], stride_h=1, stride_w=1)]
    result = agrees(write(tmp_path / "m.tflite", *operators, stored={"w": weight, "b": random((3,))}, scales=scales))
    assert (functions(result), result.warnings) == (["Conv2d"], [])


def test_quantised_input_is_read_as_the_floats_it_represents(tmp_path):
    scales = {"x": (np.float32(0.5), 3, 0), "q": (np.float32(0.5), 3, 0)}
    path = write(tmp_path / "m.tflite", op("DEQUANTIZE", ["x"], ["r"]), op("NEG", ["r"]), kinds={"x": "uint8"}, scales=scales)
    x = np.arange(120, dtype=np.uint8).reshape(1, 6, 5, 4)
    check_numbers(read_module(path), torch.from_numpy(to_first(ran(path, x))), torch.from_numpy(to_first(0.5 * (x.astype(np.float32) - 3))))


def test_input_with_channels_second_in_the_file_keeps_its_layout(tmp_path):
    """Converters of torch networks add a transposition in front."""
    stored = {"mean": np.float32(0.3), "last": np.array([0, 2, 3, 1], np.int32), "w": random((3, 3, 3, 6), 1), "b": random((3,))}
    operators = [op("SUB", ["x", "mean"], ["c"]), op("TRANSPOSE", ["c", "last"], ["t"])]
    operators.append(op("CONV_2D", ["t", "w", "b"], stride_h=1, stride_w=1))
    module = agrees(write(tmp_path / "m.tflite", *operators, stored=stored))
    assert (module.input_shape, functions(module)) == ((1, 6, 5, 4), ["sub", "Conv2d"])


def test_another_image_size_is_accepted_and_another_number_of_channels_refused(tmp_path):
    stored = {"w": random((3, 3, 3, 4), 1), "b": random((3,))}
    path = write(tmp_path / "m.tflite", op("CONV_2D", ["x", "w", "b"], stride_h=1, stride_w=1), stored=stored)
    assert read_module(path).input_shape == (1, 4, 6, 5)
    assert read_module(path, (2, 4, 9, 8))(torch.zeros(2, 4, 9, 8)).shape == (2, 3, 9, 8)
    for shape, reason in (((1, 3, 6, 5), "has 4 along axis 1, 3 is given"), ((4, 6, 5), "has 4 axes, a shape of 3 is given")):
        with pytest.raises(UsageError, match=reason):
            read_module(path, shape)


def test_integer_input_is_refused(tmp_path):
    with pytest.raises(StretchError, match="takes whole numbers as its input `x`, and inputs are real numbers here"):
        read_module(write(tmp_path / "m.tflite", op("ABS", ["x"]), kinds={"x": "int32"}))


def test_open_size_must_be_given(tmp_path):
    tables = model(op("RELU", ["x"]), shape=(1, 1))
    tables["subgraphs"][0]["tensors"][0]["shape_signature"] = [-1, -1]
    (tmp_path / "m.tflite").write_bytes(bytes(ANY_TFLITE.encode(tables)))
    with pytest.raises(UsageError, match=r"the size of the input `x` of .* is open"):
        read_module(tmp_path / "m.tflite")
    x = random((2, 7))
    assert np.array_equal(read_module(tmp_path / "m.tflite", x.shape)(torch.from_numpy(x)).numpy(), np.maximum(x, 0))
