"""Operators of ONNX files in torch against ONNX Runtime, also where several nodes become one torch operator."""

from math import pi, sqrt

import numpy as np
import onnx
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


from predictors.errors import StretchError  # noqa: E402
from stretch.network.models.onnx import read_module  # noqa: E402
from tests.scheduler.formats.onnx.shapes.oracle import Case, whole  # noqa: E402
from tests.scheduler.formats.onnx.shapes.test_shapes import windows  # noqa: E402
from tests.stretch.network.models.onnx.oracle import agrees, computed, functions, net, random, same, save  # noqa: E402

SMALL, TOKENS, X, IMAGE = (1, 4, 3, 2), (2, 6, 5, 4), (1, 4, 6, 3), (1, 4, 9, 8)
PLAIN = (
    *("Abs", "Ceil", "Cos", "Erf", "Exp", "Floor", "HardSwish", "Mish", "Neg", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign"),
    *("Asinh", "Atan", "Celu", "Cosh", "Sinh", "Shrink", "ThresholdedRelu"),
    *("Sin", "Softplus", "Softsign", "Tan", "Tanh", "Gelu", "Elu", "LeakyRelu", "HardSigmoid"),
)
ELEMENTS = [
    *[Case(op, [random(SMALL)]) for op in PLAIN],
    *[Case(op, [np.abs(random(SMALL)) + 0.1]) for op in ("Log", "Sqrt")],
    *[Case(op, [np.tanh(random(SMALL))]) for op in ("Acos", "Asin", "Atanh")],
    Case("Acosh", [np.abs(random(SMALL)) + 1.1]),
    *[Case(op, [random(SMALL), random((4, 1, 2), 1), random(SMALL, 2)]) for op in ("Mean", "Max", "Min")],
    *[Case("Swish", [random(SMALL)], {"alpha": alpha}, opset=24) for alpha in (1.0, 1.7)],
    *[Case("Shrink", [random(SMALL, scale=2)], {"lambd": 0.5, "bias": bias}) for bias in (0.0, 0.3, 0.5)],
    Case("Mod", [random(SMALL, scale=3), np.full((1,), 0.7, np.float32)], {"fmod": 1}),
    *[Case("HardSigmoid", [random(SMALL, scale=4)], {"alpha": alpha, "beta": 0.5}) for alpha in (0.2, 1 / 6)],
    *[Case("PRelu", [random(SMALL), random(shape, 1)]) for shape in ((4, 1, 1), (1,), (1, 4, 1, 1), (3, 1), (2,))],
    *[
        Case(op, [np.round(random(SMALL)), np.zeros((), np.float32)])
        for op in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
    ],
    *[
        Case("IsInf", [np.array([[1, np.inf, -np.inf, np.nan, -3]], np.float32)], {"detect_positive": up, "detect_negative": down})
        for up, down in ((1, 1), (1, 0), (0, 1))
    ],
    *[Case("CastLike", [random(SMALL, scale=3), np.ones(2, kind)]) for kind in (np.int32, np.int64, np.bool_)],
]


def weights(*shape, count=2):
    return [np.abs(random(shape, 1 + i)) + 0.5 for i in range(count)]


ALONG_AXES = [
    Case("BatchNormalization", [random(TOKENS), *weights(6, count=4)], {"epsilon": 1e-3}),
    Case("BatchNormalization", [random((2, 6)), *weights(6, count=4)]),
    Case("LayerNormalization", [random(TOKENS), *weights(4)], {"axis": -1}),
    Case("LayerNormalization", [random(TOKENS), *weights(5, 4, count=1)], {"axis": 2}),
    Case("InstanceNormalization", [random(TOKENS), *weights(6)]),
    Case("GroupNormalization", [random(TOKENS), *weights(6)], {"num_groups": 3}, opset=21),
    Case("RMSNormalization", [random(TOKENS), *weights(4, count=1)], {"epsilon": 1e-3}, opset=23),
    Case("RMSNormalization", [random(TOKENS), *weights(5, 4, count=1)], {"axis": 2}, opset=23),
    Case("MeanVarianceNormalization", [random(TOKENS)]),
    Case("MeanVarianceNormalization", [random(TOKENS)], {"axes": [1, -1]}),
    *[Case("Hardmax", [random(TOKENS)], {"axis": axis}) for axis in (1, -1)],
    Case("Hardmax", [np.round(random(TOKENS))], {"axis": 3}, opset=11),
    Case("LpNormalization", [random(TOKENS)], {"axis": 1, "p": 2}),
    Case("LRN", [random(TOKENS)], {"size": 3, "alpha": 0.1}),
    *[Case(op, [random(TOKENS)], {"axis": axis, "keepdims": axis}) for op in ("ArgMax", "ArgMin") for axis in (0, 1)],
    *[
        Case(op, [random(TOKENS), np.array(axis)], {"exclusive": 1, "reverse": reverse}, opset=opset)
        for op, opset, axis, reverse in (("CumSum", 20, -1, 0), ("CumProd", 26, 1, 1))
    ],
    *[Case(op, [random(TOKENS)], {"axis": axis}) for op in ("Softmax", "LogSoftmax") for axis in (1, -1)],
    *[Case("Softmax", [random(TOKENS)], {"axis": axis}, opset=11) for axis in (1, 3)],
    *[
        Case("Einsum", [random((2, 4, 3)), random((2, 3, 5), 1)], {"equation": equation})
        for equation in ("abc,acd->abd", "abc,acd->a", "abc,acd->dba")
    ],
    *[Case("Einsum", [random((2, 4, 4))], {"equation": equation}) for equation in ("abc->ca", "abb->ab")],
    Case("Det", [random((2, 3, 4, 4))]),
]

MOVES = [
    *[Case("Reshape", [random(X), whole(*sizes)]) for sizes in ((1, -1), (0, -1), (4, 18), (1, 2, 2, 6, 3), (-1,), (1, 72, 1, 1))],
    Case("Flatten", [random(X)], {"axis": 2}),
    Case("Flatten", [random(X)], {"axis": -3}),
    Case("Squeeze", [random((1, 4, 1, 1)), whole(2, -1)]),
    Case("Squeeze", [random((1, 4, 1, 3))], {"axes": [2]}, opset=11),
    Case("Unsqueeze", [random((2, 4)), whole(2, 3)]),
    Case("Transpose", [random(X)], {"perm": [0, 2, 3, 1]}),
    Case("Transpose", [random(X)]),
    Case("Concat", [random(X), random((1, 2, 6, 3), 1)], {"axis": 1}),
    Case("Concat", [random(X), random((1, 4, 6, 2), 1)], {"axis": -1}),
    Case("Slice", [random(X), whole(1), whole(3), whole(1)]),
    Case("Slice", [random(X), whole(0, -3), whole(2**62, -1), whole(1, 2), whole(2, 1)]),
    Case("Slice", [random(X), whole(3), whole(0), whole(1), whole(-1)]),
    Case("Slice", [random(X), whole(-1, 0), whole(-(2**62), 2), whole(-1, 1), whole(-2, 1)]),
    Case("Trilu", [random(X), np.array(1)], {"upper": 0}),
    Case("Trilu", [random(X)]),
    Case("Slice", [random(X)], {"starts": [1], "ends": [3], "axes": [1]}, opset=9),
    Case("Expand", [random((1, 4, 1, 1)), whole(1, 4, 5, 2)]),
    Case("Tile", [random(X), whole(1, 2, 1, 3)]),
    Case("Pad", [random(X), whole(0, 0, 1, 2, 0, 0, 3, 0)]),
    Case("Pad", [random(X), whole(0, 1, 0, 0, 0, 2, 0, 0)]),
    Case("Pad", [random(X), whole(0, 0, 1, 0, 0, 0, 1, 0), np.float32(2).reshape(())]),
    Case("Pad", [random(X)], {"pads": [0, 0, 1, 0, 0, 0, 0, 1], "value": 3.0}, opset=10),
    *[Case("Pad", [random(X), whole(0, 0, 1, 2, 0, 0, 3, 0)], {"mode": mode}) for mode in ("reflect", "edge", "wrap")],
    *[Case("DepthToSpace", [random((1, 8, 3, 2))], {"blocksize": 2, "mode": mode}) for mode in ("DCR", "CRD")],
    Case("CenterCropPad", [random(X), whole(1, 7, 3, 3)]),
    Case("CenterCropPad", [random(X), whole(9, 3)], {"axes": [-1, 1]}),
    Case("CenterCropPad", [random(X), whole(5)], {"axes": [2]}),
    Case("Col2Im", [random((2, 8, 6)), whole(3, 4), whole(2, 2)]),
    Case("Col2Im", [random((1, 8, 9)), whole(5, 5), whole(2, 2)], {"pads": [1, 0, 1, 0], "strides": [2, 1], "dilations": [1, 2]}),
    Case("SpaceToDepth", [random((1, 3, 4, 6))], {"blocksize": 2}),
]

REDUCTIONS = ["none", "add", "mul", "max", "min"]


def random_indices(shape, sizes, seed=0):
    """Return distinct indices into axes of these sizes, positive or negative."""
    flat = np.random.default_rng(seed).choice(int(np.prod(sizes)), int(np.prod(shape)), replace=False).reshape(shape)
    places = np.stack(np.unravel_index(flat, sizes), -1)
    return np.where(np.random.default_rng(seed + 1).random(places.shape) < 0.5, places, places - np.array(sizes)).astype(np.int64)


PLACES = [
    Case("Gather", [random(X), np.array(2)], {"axis": 1}),
    Case("Gather", [random(X), np.array(-1)], {"axis": -1}),
    Case("Gather", [random(X), whole(3, -1, 0)], {"axis": 1}),
    Case("Gather", [random(X), whole(3, -1, 0).astype(np.int32)], {"axis": -2}),
    Case("Gather", [random(X), np.array([[0, 1], [2, 0]])], {"axis": 2}),
    Case("GatherElements", [random(X), np.array([[[[0, -1]]]]).repeat(3, 2).repeat(2, 1)], {"axis": 3}),
    Case("GatherND", [random(X), random_indices((3,), (1, 4))]),
    Case("GatherND", [random(X), random_indices((2, 3), X)]),
    Case("GatherND", [random((2, 3, 4)), random_indices((2, 1), (3,))], {"batch_dims": 1}),
    Case("GatherND", [random((2, 3, 4)), np.array([[[0], [-1], [3]], [[2], [0], [1]]])], {"batch_dims": 2}),
    *[Case("ScatterND", [random(X), random_indices((5,), (1, 4, 6)), random((5, 3), 1)], {"reduction": how}) for how in REDUCTIONS],
    Case("ScatterND", [random(X), random_indices((2, 2), X), random((2, 2), 1)]),
    *[
        Case("ScatterElements", [random((3, 4)), whole(0, -1, 1)[None], random((1, 3), 1)], {"axis": 1, "reduction": how})
        for how in REDUCTIONS
    ],
    Case("Scatter", [random((3, 4)), whole(0, 2, 1)[None], random((1, 3), 1)], opset=10),
    *[
        Case("GridSample", [random((1, 2, 5, 6)), random((1, 3, 4, 2), 1)], {"mode": mode, "padding_mode": edge})
        for mode, edge in (("linear", "border"), ("nearest", "zeros"), ("cubic", "reflection"))
    ],
    Case("GridSample", [random((1, 2, 3, 5, 6)), random((1, 2, 3, 4, 3), 1)]),
    Case("GridSample", [random((1, 2, 5, 6)), random((1, 3, 4, 2), 1)], {"mode": "bicubic"}, opset=16),
    *[Case("AffineGrid", [random((2, 2, 3)), whole(2, 3, 4, 5)], {"align_corners": corners}) for corners in (0, 1)],
    Case("OneHot", [np.round(random((2, 5), scale=3)), np.array(3, np.float32), np.array([-0.5, 2.0], np.float32)], {"axis": 1}),
    Case("OneHot", [np.round(random((2, 5), scale=3)), np.array([4], np.float32), np.array([0, 1], np.float32)]),
]

UNEVEN = {"pads": [1, 0, 1, 1], "strides": [2, 1]}
WINDOWS = [
    *[
        Case("AveragePool", [random(IMAGE)], {"kernel_shape": [3, 2], **UNEVEN, "count_include_pad": counted, "ceil_mode": up})
        for counted, up in ((0, 0), (1, 1))
    ],
    Case("ConvTranspose", [random(IMAGE), random((4, 3, 3, 2), 1), random((6,), 2)], {"strides": [2, 3], "pads": [1, 0, 1, 0], "group": 2}),
    Case("LpPool", [random(IMAGE)], {"kernel_shape": [3, 2], "p": 3, **UNEVEN}),
    *[
        Case(op, [random(shape)])
        for op in ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
        for shape in ((1, 3, 9), IMAGE, (1, 3, 4, 5, 6))
    ],
    *[
        Case(op, [random(X), np.array([1, 1, 2, 3], np.float32)], {"mode": "nearest"}, opset=opset)
        for op, opset in (("Upsample", 9), ("Resize", 10))
    ],
]


Q, K, V = (random(shape, i) for i, shape in enumerate([(2, 4, 5, 8), (2, 4, 6, 8), (2, 4, 6, 3)]))
HEADS = {"q_num_heads": 4, "kv_num_heads": 4}
FLAT = [random((2, 5, 32)), random((2, 6, 32), 1), random((2, 6, 12), 2)]
MASK = np.random.default_rng(0).random((5, 6)) < 0.7
ANGLES = random((9, 4), 5)
TURNS = [np.cos(ANGLES), np.sin(ANGLES)]
OWN = [turn[None, :5].repeat(2, 0) for turn in TURNS]
ROWS = np.array([[0, 1, 2, 3, 4], [8, 7, 1, 0, 3]])
ROTATIONS = [
    Case("RotaryEmbedding", inputs, {**attrs, "interleaved": woven}, opset=23)
    for inputs, attrs in (
        ([Q, *TURNS, ROWS], {}),
        ([Q, *OWN], {}),
        ([FLAT[0], *TURNS, ROWS], {"num_heads": 4}),
        ([Q, *(turn[:, :2].copy() for turn in TURNS), ROWS], {"rotary_embedding_dim": 4}),
    )
    for woven in (0, 1)
]


STEPS, BATCH, WIDTH, SIZE = 5, 2, 3, 4
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def layer(op, direction="forward", *, bias=True, size=SIZE, **attrs):
    options, rows = 2 if direction == "bidirectional" else 1, GATES[op] * SIZE
    inputs = [random((STEPS, BATCH, WIDTH)), random((options, rows, WIDTH), 1), random((options, rows, size), 2)]
    defaults = {"linear_before_reset": 1} if op == "GRU" else {}
    stored = [random((options, 2 * rows), 3)] if bias else []
    return Case(op, [*inputs, *stored], {"hidden_size": SIZE, "direction": direction, **defaults, **attrs})


LAYERS = [
    layer(op, direction, bias=bias) for op in GATES for direction in ("forward", "reverse", "bidirectional") for bias in (True, False)
]


@pytest.mark.representatives(86)
@pytest.mark.parametrize(
    "case",
    [*ELEMENTS, *ALONG_AXES, *MOVES, *PLACES, *WINDOWS, *ROTATIONS, *LAYERS],
    ids=lambda case: f"{case.op}-{case.attrs}-{case.opset}",
)
def test_operator_computes_what_the_runtime_does(tmp_path, case):
    agrees(tmp_path, case)


def resized(*sizes, **attrs):
    """Make a resize of an image to other sizes."""
    return Case("Resize", [random(X), None, None, whole(1, *sizes)], attrs)


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (Case("PRelu", [random(SMALL), random((2, 4, 3, 2))]), r"its slopes have the shape \[2, 4, 3, 2\]"),
        (Case("Shrink", [random(SMALL)], {"lambd": -1.0}), "its lambd is -1"),
        (Case("IsInf", [random(SMALL)], {"detect_positive": 0, "detect_negative": 0}), "looks for no infinity"),
        (Case("Cast", [random(SMALL)], {"to": 14}), "casts to type 14"),
        (Case("Add", [random(SMALL), random((5,))]), "torch does not take what it reads"),
        (Case("BatchNormalization", [random(TOKENS), *weights(5, count=4)]), r"its weights have the shape \[5\], \[6\] are needed"),
        (Case("LayerNormalization", [random(TOKENS), *weights(5, 4)]), r"shape \[5, 4\], \[4\] are needed"),
        (Case("ReduceSum", [random(TOKENS)], {"noop_with_empty_axes": 1}), "reduces nothing"),
        (Case("CumSum", [random(TOKENS), np.array(7)]), "its axis is 7"),
        (Case("Hardmax", [random(TOKENS)], opset=11), "before opset 13"),
        (Case("LRN", [random(TOKENS)]), "its attributes are not understood"),
        (Case("Gemm", [random((3, 2)), random((3, 5))], {"transA": 1}), "it turns what it reads"),
        (Case("Gemm", [random((2, 3)), random((3, 5)), random((2, 1))]), "not one number a column"),
        (Case("MatMul", [random((2, 3)), random((4, 5))]), "torch does not take what it reads"),
        (Case("Slice", [random(X), whole(3), whole(3), whole(1)]), "cuts nothing"),
        (Case("Reshape", [random(X), whole(5, -1)]), "it makes"),
        (Case("CenterCropPad", [random(X), whole(3)]), "its attributes are not understood"),
        (Case("Col2Im", [random((1, 8, 6)), whole(3, 4), whole(2, 2)], {"pads": [1, 0, 0, 0]}), "differs between sides"),
        (Case("EyeLike", [random(X)]), "no matrix"),
        (Case("Pad", [random(X), whole(0, 0, 1, 1)]), "for 4 axes"),
        (Case("Gather", [random(X), whole(4)], {"axis": 1}), "beyond an axis of 4"),
        (Case("Gather", [random(X), random((2,))], {"axis": 1}), "its indices are of type float32"),
        (Case("GatherElements", [random(X), whole(7, 0)]), "beyond an axis of 1"),
        (Case("GatherND", [random(X), whole(0, 4)[None]]), "beyond an axis of 1 or 4"),
        (Case("GatherND", [random(X), np.zeros((2, 5), np.int64)]), r"its indices have the shape \[2, 5\]"),
        (Case("GatherND", [random(X), np.zeros((2, 1), np.int64)], {"batch_dims": 1}), "1 axes of them alike"),
        (Case("GatherND", [random(X), np.zeros((1, 1), np.int64)], {"batch_dims": 7}), "7 axes of them alike"),
        (Case("ScatterND", [random(X), np.zeros((2, 1), np.int64), random((2, 4))]), r"it writes \[2, 4\] where \[2, 4, 6, 3\] goes"),
        (Case("ScatterND", [random((3,)), np.zeros((1, 1), np.int64), random((1,))], {"reduction": "mean"}), "its reduction is `mean`"),
        (Case("ScatterElements", [random((3, 4)), whole(0, 1)[None], random((2, 1))]), r"it writes \[2, 1\] where \[1, 2\] goes"),
        (Case("OneHot", [random((2,)), np.array(1 << 40), np.ones(2, np.float32)]), "the depth 1099511627776"),
        (Case("OneHot", [random((2,)), np.array(0), np.ones(2, np.float32)]), "the depth 0"),
        (Case("OneHot", [random((2,)), np.array(3), np.ones(3, np.float32)]), "it has 3 values"),
        (Case("GridSample", [random(X), random((1, 2, 2, 2))], {"mode": "best"}), "torch does not take what it reads"),
        (Case("Conv", [random(IMAGE), random((6, 4, 3, 3)), random((5,))]), r"its weights have the shape \[5\], \[6\] are needed"),
        (Case("Conv", [random(IMAGE), random((6, 4, 3))]), "its input and weight have the shapes"),
        (Case("Conv", [random(IMAGE), random((6, 4, 3, 3))], {"strides": [1]}), r"its strides is \[1\] for 2 axes"),
        (Case("Conv", [random(IMAGE), random((6, 4, 3, 3))], {"pads": [1, 1]}), r"its pads are \[1, 1\] for 2 axes"),
        (Case("Conv", [random(IMAGE), random((6, 4, 30, 30))]), "torch does not take what it reads"),
        (Case("MaxPool", [random(IMAGE)], {"kernel_shape": [2, 2]}, results=2), "places of the largest"),
        (Case("GlobalMaxPool", [random((1, 3, 4, 5, 6, 7))]), "is no row, image or volume"),
        (Case("LpPool", [random(IMAGE)], {"kernel_shape": [2, 2], "ceil_mode": 1}), "has gaps or overhangs"),
        (Case("GlobalLpPool", [random(IMAGE)], {"p": 0}), "it is of the norm 0"),
        (Case("ConvTranspose", [random(IMAGE), random((4, 3, 3, 3))], {"output_shape": [9, 9]}), "leaves its padding"),
        (resized(8, 6, 3), r"it resizes \[1, 4, 6, 3\] to \[1, 8, 6, 3\]"),
        (Case("Resize", [random(X), None, np.ones(2, np.float32)]), "2 scales for 4 axes"),
        (resized(4, 5, 5, coordinate_transformation_mode="tf_crop_and_resize"), "coordinates `tf_crop_and_resize`"),
        (resized(4, 5000, 3, mode="linear", coordinate_transformation_mode="asymmetric"), "coordinates that torch has not"),
        *[
            (Case(op, [random((1, 4, 9))], {"kernel_shape": [3], "strides": [2], "pads": [0, 1], **attrs}), "differs between sides")
            for op, attrs in (("MaxPool", {"ceil_mode": 1}), ("AveragePool", {}))
        ],
        (Case("Attention", [Q, K, V], {"softcap": 2.0}, opset=23), "bounds its scores"),
        (Case("Attention", [Q, K, V, None, K, V], opset=23), "computed before"),
        (Case("Attention", [Q, K, V, MASK], {"is_causal": 1}, opset=23), "sees no later tokens besides"),
        (Case("Attention", FLAT, opset=23), "32 channels are not of 0 heads"),
        (Case("Attention", FLAT, {"q_num_heads": 5, "kv_num_heads": 4}, opset=23), "32 channels are not of 5 heads"),
        (Case("Attention", [Q, K[..., :3], V], opset=23), "torch does not take what it reads"),
        (Case("RotaryEmbedding", [FLAT[0], *TURNS, ROWS], opset=23), "32 channels are not of 0 heads"),
        (Case("RotaryEmbedding", [Q, *TURNS, ROWS + 5], opset=23), "its positions"),
        (Case("RotaryEmbedding", [Q, *TURNS], opset=23), r"its cosines have the shape \[9, 4\], not \[2, 5, 4\]"),
        (Case("RotaryEmbedding", [Q, *TURNS, ROWS], {"rotary_embedding_dim": 9}, opset=23), "it turns 9 of 8 channels"),
        (layer("GRU", linear_before_reset=0), "it resets before its product"),
        (layer("LSTM", activations=["Relu", "Tanh", "Tanh"]), "its activations are"),
        (layer("LSTM", clip=1.0), "it clips"),
        (layer("RNN", direction="sideways"), "its direction is `sideways`"),
        (layer("LSTM", size=5), "its weights have the shapes"),
    ],
)
def test_operator_that_torch_cannot_express_is_refused_with_its_node(tmp_path, case, reason):
    path = save(tmp_path / "m.onnx", case)
    with pytest.raises(StretchError, match=rf"node `{case.op}_0` \({case.op}\) of .*m\.onnx cannot be read: .*{reason}"):
        read_module(path)


@pytest.mark.skipif(onnx.defs.onnx_opset_version() < 28, reason="ONNX has no SwiGLU before opset 28")
@pytest.mark.parametrize("alpha", [1.0, 1.7])
def test_gate_times_another_tensor_computes_what_onnx_says(tmp_path, alpha):
    model = net(helper.make_node("SwiGLU", ["x", "other"], ["y"], alpha=alpha), stored={"other": random(SMALL, 1)}, shape=SMALL, opset=28)
    onnx.save(model, str(tmp_path / "m.onnx"))
    # ONNX Runtime does not have this operator yet.
    [want] = ReferenceEvaluator(model).run(None, {"x": random(SMALL)})
    np.testing.assert_allclose(computed(tmp_path / "m.onnx", random(SMALL)), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("op", ["BitwiseAnd", "BitwiseOr", "BitwiseXor"])
def test_bits_are_combined_as_the_runtime_does(tmp_path, op):
    nodes = [
        helper.make_node("Cast", ["x"], ["i"], to=TensorProto.INT32),
        helper.make_node(op, ["i", "bits"], ["j"]),
        helper.make_node("BitwiseNot", ["j"], ["k"]),
        helper.make_node("CastLike", ["k", "x"], ["y"]),
    ]
    same(tmp_path / "m.onnx", net(*nodes, stored={"bits": np.array(0b1011, np.int32)}, shape=SMALL, opset=18), random(SMALL, scale=20))


@pytest.mark.representatives(22)
@pytest.mark.parametrize("op", ["Add", "Div", "Max", "Min", "Mul", "Pow", "Sub"])
@pytest.mark.parametrize("shape", [(), (1,), (4, 1, 1), (1, 4, 1, 1), SMALL, (3, 1), (1, 1, 1, 1)])
@pytest.mark.parametrize("first", [False, True])
def test_function_of_a_tensor_and_a_stored_one_computes_what_the_runtime_does(tmp_path, op, shape, first):
    node = helper.make_node(op, ["c", "x"] if first else ["x", "c"], ["y"])
    model = net(node, stored={"c": np.abs(random(shape, 1)) + 0.5}, shape=SMALL)
    same(tmp_path / "m.onnx", model, np.abs(random(SMALL)) + 0.5)


FACTORS = {"half": 1 / 2, "sixth": 1 / 6, "root2": sqrt(2), "inverse": 1 / sqrt(2), "cubic": 0.044715, "rootpi": sqrt(2 / pi)}
NUMBERS = {name: np.float32(value) for name, value in (FACTORS | {str(n): n for n in (0, 1, 3, 6, 8)}).items()}


def nodes(*lines):
    """Parse nodes written as `result = Operator first second …`."""
    built = []
    for line in lines:
        result, _, call = line.partition(" = ")
        kind, *reads = call.split()
        attrs = {"alpha": 1 / 6, "beta": 0.5} if kind == "HardSigmoid" else {}
        built.append(helper.make_node(kind, reads, [result], **attrs))
    return built


WRITTEN = {
    "silu": [("g = Sigmoid x", "y = Mul x g"), ("g = Sigmoid x", "y = Mul g x")],
    "hardswish": [
        ("g = HardSigmoid x", "y = Mul x g"),
        ("a = Add x 3", "c = Clip a 0 6", "d = Div c 6", "y = Mul x d"),
        ("a = Add 3 x", "c = Clip a 0 6", "m = Mul x c", "y = Div m 6"),
        ("a = Add x 3", "c = Clip a 0 6", "m = Mul c x", "y = Mul sixth m"),
    ],
    "hardsigmoid": [("a = Add x 3", "c = Clip a 0 6", "y = Div c 6"), ("a = Add x 3", "c = Clip a 0 6", "y = Mul c sixth")],
    "mish": [("s = Softplus x", "t = Tanh s", "y = Mul x t")],
    "gelu": [
        ("d = Div x root2", "e = Erf d", "a = Add e 1", "m = Mul x a", "y = Mul m half"),
        ("d = Mul x inverse", "e = Erf d", "a = Add 1 e", "h = Mul half x", "y = Mul h a"),
        ("d = Div x root2", "e = Erf d", "a = Add e 1", "h = Mul a half", "y = Mul x h"),
        ("p = Pow x 3", "c = Mul p cubic", "s = Add x c", "r = Mul s rootpi", "t = Tanh r", "a = Add t 1", "h = Mul x half", "y = Mul h a"),
    ],
}

NEARLY = [
    ("g = Sigmoid x", "r = Relu x", "y = Mul r g"),
    ("a = Add x 3", "c = Clip a 0 6", "m = Mul x c", "y = Div m 3"),
    ("a = Add x 6", "c = Clip a 0 6", "m = Mul x c", "y = Div m 6"),
    ("a = Add x 3", "c = Clip a 0 8", "m = Mul x c", "y = Div m 6"),
    ("d = Mul x 3", "e = Erf d", "a = Add e 1", "m = Mul x a", "y = Mul m half"),
    ("d = Div x root2", "e = Erf d", "a = Add e 3", "m = Mul x a", "y = Mul m half"),
    ("p = Pow x 6", "c = Mul p cubic", "s = Add x c", "r = Mul s rootpi", "t = Tanh r", "a = Add t 1", "h = Mul x half", "y = Mul h a"),
    ("s = Sigmoid x", "t = Tanh s", "y = Mul x t"),
]
WRITTEN_CASES = [(name, lines) for name, options in (WRITTEN | {"": NEARLY}).items() for lines in options]


@pytest.mark.parametrize(("name", "lines"), WRITTEN_CASES, ids=lambda part: part if isinstance(part, str) else " ".join(part))
def test_activation_is_found_in_every_form_and_an_almost_activation_stays_as_nodes(tmp_path, name, lines):
    called = same(tmp_path / "m.onnx", net(*nodes(*lines), stored=NUMBERS), random((1, 4, 5, 3), scale=3 if name else 1))
    assert called == [name] if name else len(called) == len(lines)


@pytest.mark.parametrize("zero", [np.uint8(0), np.int8(-128)])
@pytest.mark.parametrize(("scale", "rectifier"), [(0.01, "relu"), (6 / 255, "relu6")])
def test_quantised_range_that_begins_at_zero_is_a_rectifier(tmp_path, zero, scale, rectifier):
    nodes = [
        helper.make_node("Sin", ["x"], ["t"]),
        helper.make_node("QuantizeLinear", ["t", "scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["r"]),
        helper.make_node("Tanh", ["r"], ["y"]),
    ]
    onnx.save(net(*nodes, stored={"scale": np.float32(scale), "zero": zero}), str(tmp_path / "m.onnx"))
    assert functions(read_module(tmp_path / "m.onnx")) == ["sin", rectifier, "tanh"]


REDUCED = ["ReduceProd", "ReduceSumSquare", "ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum"]


@pytest.mark.representatives(16)
@pytest.mark.parametrize("op", REDUCED)
@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("axes", [(2, 3), (1,), (-1, -2), None])
def test_reduction_computes_what_the_runtime_does(tmp_path, op, keep, axes):
    agrees(tmp_path, Case(op, [random(TOKENS)], {"keepdims": keep} | ({} if axes is None else {"axes": list(axes)}), opset=11))
    if axes is not None:
        agrees(tmp_path, Case(op, [random(TOKENS), whole(*axes)], {"keepdims": keep}))


@pytest.mark.parametrize("axis", [1, -1])
@pytest.mark.parametrize("largest", [0, 1])
def test_largest_elements_and_their_indices_are_those_of_the_runtime(tmp_path, axis, largest):
    nodes = [
        helper.make_node("TopK", ["x", "k"], ["v", "i"], axis=axis, largest=largest),
        helper.make_node("Cast", ["i"], ["r"], to=1),
        helper.make_node("Add", ["v", "r"], ["y"]),
    ]
    same(tmp_path / "m.onnx", net(*nodes, stored={"k": whole(2)}, shape=TOKENS), random(TOKENS))


LAYER_NORMS_X = (2, 5, 8)
STORED = {"w": random((8,), 1), "b": random((8,), 2), "eps": np.float32(1e-3), "two": np.float32(2), "three": np.float32(3)}


def mean(read, written, **attrs):
    return helper.make_node("ReduceMean", [read], [written], **({"axes": [-1]} | attrs))


def norm_node(kind, *names):
    return helper.make_node(kind, list(names[:-1]), [names[-1]])


def layer_norm(**changes):
    """Make a model of a layer norm's nodes; `changes` replace nodes by the name of their result."""
    nodes = {
        "m": mean("x", "m"),
        "d": norm_node("Sub", "x", "m", "d"),
        "p": norm_node("Pow", "d", "two", "p"),
        "v": mean("p", "v"),
        "e": norm_node("Add", "v", "eps", "e"),
        "s": norm_node("Sqrt", "e", "s"),
        "n": norm_node("Div", "d", "s", "n"),
        "t": norm_node("Mul", "n", "w", "t"),
        "y": norm_node("Add", "t", "b", "y"),
    }
    return net(*(nodes | changes).values(), stored=STORED, shape=LAYER_NORMS_X)


LAYER_NORMS = [{}, {"m": mean("x", "m", axes=[2])}, {"t": norm_node("Mul", "w", "n", "t"), "y": norm_node("Add", "b", "t", "y")}]
NO_LAYER_NORMS = [
    {"m": mean("x", "m", axes=[1])},
    {"v": mean("p", "v", axes=[1])},
    {"p": norm_node("Pow", "x", "two", "p")},
    {"p": norm_node("Mul", "d", "x", "p")},
    {"n": norm_node("Div", "x", "s", "n")},
    {"d": norm_node("Sub", "x", "three", "d"), "p": norm_node("Pow", "d", "two", "p")},
    {"t": norm_node("Mul", "n", "three", "t")},
]


@pytest.mark.parametrize("changes", [*LAYER_NORMS, *NO_LAYER_NORMS], ids=str)
def test_layer_norm_of_several_nodes_is_one_module_and_an_almost_layer_norm_stays_nodes(tmp_path, changes):
    called = same(tmp_path / "m.onnx", layer_norm(**changes), random(LAYER_NORMS_X))
    assert called == ["LayerNorm"] if changes in LAYER_NORMS else "LayerNorm" not in called


@pytest.mark.representatives(5)
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("matrices")


@given(st.booleans(), st.sampled_from([None, (5,), (1, 5), (1,), ()]), st.sampled_from([1.0, 0.5]), st.sampled_from([1.0, 2.0]))
def test_gemm_is_a_linear_layer(folder, turned, bias, alpha, beta):
    weights = [random((5, 3) if turned else (3, 5), 1), *([] if bias is None else [random(bias, 2)])]
    built = agrees(folder, Case("Gemm", [random((2, 3)), *weights], {"transB": int(turned), "alpha": alpha, "beta": beta}))
    assert [layer.bias is None for layer in built.children()] == [bias is None]


@pytest.mark.parametrize(("attrs", "sizes", "opset"), [({}, [1, 3], 20), ({"num_outputs": 2}, None, 20), ({"split": [3, 1]}, None, 11)])
def test_split_computes_what_the_runtime_does(tmp_path, attrs, sizes, opset):
    nodes = [
        helper.make_node("Split", ["x", *(["sizes"] if sizes else [])], ["one", "other"], axis=1, **attrs),
        helper.make_node("Concat", ["other", "one"], ["y"], axis=1),
    ]
    same(tmp_path / "m.onnx", net(*nodes, stored={"sizes": whole(*sizes)} if sizes else {}, shape=X, opset=opset), random(X))


def check_computed_indices(folder, node, shape, cut, size, **stored):
    """Assert that a node with computed indices agrees with the runtime."""
    model = net(
        helper.make_node("Slice", ["x", *cut], ["piece"]),
        helper.make_node("Abs", ["piece"], ["plain"]),
        helper.make_node("Abs", ["x"], ["all"]),
        helper.make_node("ReduceMax", ["all"], ["top"], keepdims=0),
        helper.make_node("Div", ["piece", "top"], ["part"]),
        helper.make_node("Mul", ["part", "size"], ["scaled"]),
        helper.make_node("Cast", ["scaled"], ["i"], to=7),
        node,
        helper.make_node("Identity", ["r"], ["y"]),
        stored={**stored, "size": np.asarray(size, np.float32)},
        shape=shape,
        opset=18,
    )
    same(folder / "m.onnx", model, random(shape))


CUT = {"starts": whole(0, 0), "ends": whole(2, 2), "axes": whole(0, 1)}


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_computed_indices_are_gathered(tmp_path, axis):
    size = (3, 4, 5)[axis] - 0.01
    for op in ("Gather", "GatherElements"):
        check_computed_indices(tmp_path, helper.make_node(op, ["x", "i"], ["r"], axis=axis), (3, 4, 5), list(CUT), size, **CUT)


@pytest.mark.parametrize("batch", [0, 1])
def test_computed_tuples_of_indices_are_gathered(tmp_path, batch):
    cut = {"starts": whole(0), "ends": whole(2), "axes": whole(2)}
    sizes = np.array([[3, 4], [4, 5]][batch]) - 0.01
    check_computed_indices(tmp_path, helper.make_node("GatherND", ["x", "i"], ["r"], batch_dims=batch), (3, 4, 5), list(cut), sizes, **cut)


@pytest.mark.parametrize("reduction", ["add", "max"])
def test_numbers_are_scattered_to_computed_indices(tmp_path, reduction):
    node = helper.make_node("ScatterElements", ["x", "i", "plain"], ["r"], axis=1, reduction=reduction)
    check_computed_indices(tmp_path, node, (3, 4, 5), list(CUT), 3.9, **CUT)
    cut = {"starts": whole(0), "ends": whole(1), "axes": whole(2)}
    node = helper.make_node("ScatterND", ["x", "i", "new"], ["r"], reduction=reduction)
    check_computed_indices(tmp_path, node, (3, 4, 5), list(cut), 2.9, **cut, new=random((3, 4, 4, 5), 3))


@given(st.data())
def test_stored_tuples_of_indices_gather_what_numpy_does(tmp_path_factory, data):
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple))
    depth = data.draw(st.integers(1, len(shape)))
    count = data.draw(st.integers(1, int(np.prod(shape[:depth]))))
    case = Case("GatherND", [random(shape), random_indices((count,), shape[:depth])])
    path = save(tmp_path_factory.mktemp("nd") / "m.onnx", case)
    np.testing.assert_array_equal(computed(path, case.inputs[0]), case.inputs[0][tuple(case.inputs[1].T)])


@given(windows("Conv"), st.integers(0, 99))
def test_convolution_over_one_to_three_axes_computes_what_the_runtime_does(folder, case, seed):
    case.inputs = [random(x.shape, seed + i) for i, x in enumerate(case.inputs)]
    agrees(folder, case)


@given(windows("MaxPool"), st.integers(0, 99))
def test_max_pooling_computes_what_the_runtime_does(folder, case, seed):
    case.attrs["dilations"] = [1] * len(case.attrs["kernel_shape"])
    case.inputs = [random(case.inputs[0].shape, seed)]
    before, behind = np.array_split(case.attrs["pads"], 2)
    # Pools with a padding that torch refuses are padded before, which differs where sizes are rounded up.
    assume(not case.attrs["ceil_mode"] or ((before == behind).all() and (before <= np.array(case.attrs["kernel_shape"]) // 2).all()))
    assume(case.computed() is not None)
    agrees(folder, case)


COORDINATES = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"]
SIDES = st.tuples(st.integers(2, 9), st.integers(2, 9))


@given(SIDES, SIDES, st.sampled_from(COORDINATES), st.sampled_from(["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"]))
def test_nearest_resizing_computes_what_the_runtime_does(folder, old, new, coordinates, rounding):
    assume(old != new)
    attrs = {"mode": "nearest", "coordinate_transformation_mode": coordinates, "nearest_mode": rounding}
    agrees(folder, Case("Resize", [random((1, 2, *old)), None, None, whole(1, 2, *new)], attrs))


@given(SIDES, st.sampled_from([0.5, 0.75, 1.25, 1.5, 2.0, 2.5]), st.sampled_from([0.5, 1.0, 1.75, 3.0]), st.sampled_from(COORDINATES))
def test_smooth_resizing_by_fractions_computes_what_the_runtime_does(folder, old, down, across, coordinates):
    assume((int(old[0] * down), int(old[1] * across)) != old)
    attrs = {"mode": "linear", "coordinate_transformation_mode": coordinates}
    agrees(folder, Case("Resize", [random((1, 2, *old)), None, np.array([1, 1, down, across], np.float32)], attrs))


@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
def test_resizing_to_the_same_size_changes_nothing(tmp_path, mode):
    nodes = [helper.make_node("Resize", ["x", "", "scales"], ["r"], mode=mode), helper.make_node("Tanh", ["r"], ["y"])]
    x = random((1, 2, 4, 3))
    same(tmp_path / "m.onnx", net(*nodes, stored={"scales": np.array([1, 1, 1.2, 1.3], np.float32)}, shape=x.shape), x)


def test_resizing_that_repeats_pixels_is_one_interpolation_of_torch(tmp_path):
    for coordinates, rounding in (("asymmetric", "floor"), ("half_pixel", "round_prefer_floor")):
        attrs = {"mode": "nearest", "coordinate_transformation_mode": coordinates, "nearest_mode": rounding}
        assert functions(agrees(tmp_path, Case("Resize", [random(X), None, np.array([1, 1, 2, 3], np.float32)], attrs))) == ["interpolate"]
