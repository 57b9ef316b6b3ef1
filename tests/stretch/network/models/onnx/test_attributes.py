"""Every attribute of every supported ONNX operator: it has the same effect as in ONNX Runtime, or it is refused by name."""

from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto, defs, helper

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from predictors.errors import StretchError  # noqa: E402
from stretch.network.models.onnx import read_module  # noqa: E402
from stretch.network.models.onnx.network import OPSETS, RULES  # noqa: E402
from tests.scheduler.formats.onnx.shapes.oracle import Case, whole  # noqa: E402
from tests.stretch.network.models.onnx.oracle import CLOSE, net, random, same, save  # noqa: E402
from tests.stretch.network.models.onnx.test_operators import ALONG_AXES, ELEMENTS, LAYERS, MOVES, PLACES, ROTATIONS, WINDOWS  # noqa: E402

IMAGE, ROWS = (1, 4, 6, 5), (3, 3, 3)
ONES = [np.abs(random((4,), 1 + i)) + 0.5 for i in range(4)]
SCALES = np.array([1, 1, 2, 3], np.float32)
REDUCED = [op for op in RULES if op.startswith("Reduce")]


def image(op, *others, **attrs):
    return Case(op, [random(IMAGE), *others], attrs)


def rows(op, *others, **attrs):
    return Case(op, [random(ROWS), *others], attrs)


#: Two nodes of each operator that is compared with the runtime.
TABLES = (*ELEMENTS, *ALONG_AXES, *MOVES, *PLACES, *WINDOWS, *ROTATIONS, *LAYERS)
BY_OP = {op: [case for case in TABLES if case.op == op] for op in dict.fromkeys(case.op for case in TABLES)}

#: More nodes, where attributes interact or differed in earlier opsets; all other nodes read one image.
CASES = [
    *(case for cases in BY_OP.values() for case in cases[:: max(1, len(cases) // 2)][:2]),
    *[image(op, random((4, 1, 1), 1)) for op in ("Add", "Mul", "Sub", "Sum", "Div")],
    Case("ReduceLogSum", [np.abs(random(IMAGE)) + 1.1]),
    Case("Pow", [np.abs(random(IMAGE)), np.float32([1.7])]),
    *[
        image(op, kernel_shape=[3, 2], **settings)
        for op in ("AveragePool", "MaxPool", "LpPool")
        for settings in (
            {},
            {"pads": [1, 1, 1, 0]},
            {"strides": [2, 2], "ceil_mode": 1},
            {"pads": [1, 1, 1, 1], "strides": [4, 3], "ceil_mode": 1, "count_include_pad": 1},
        )
    ],
    Case("Attention", [random((2, 4, 5, 8)), random((2, 4, 6, 8), 1), random((2, 4, 6, 3), 2)]),
    Case("Attention", [random((2, 5, 32)), random((2, 6, 32), 1), random((2, 6, 12), 2)], {"q_num_heads": 4, "kv_num_heads": 4}),
    Case("Cast", [random(IMAGE, scale=3)], {"to": TensorProto.INT32}),
    image("Clip", np.float32(-0.5), np.float32(0.3)),
    image("Clip", min=-0.5, max=0.3),
    *[Case("Col2Im", [random((1, 8, n)), whole(4, 4), whole(2, 2)]) for n in (9, 4, 6, 25)],
    *[image("Conv", random((4, 4 // group, 3, 2), 1), ONES[0], group=group) for group in (1, 2)],
    *[image("ConvTranspose", random((4, 4, 3, 2), 1), strides=[2, 2], **settings) for settings in ({}, {"output_padding": [1, 1]})],
    Case("Einsum", [random((3, 3)), random((3, 3), 1)], {"equation": "ab,bc->ac"}),
    Case("EyeLike", [random((3, 4))]),
    Case("Gemm", [random((3, 3)), random((3, 3), 1), random((3,), 2)]),
    Case("MatMul", [random((2, 3)), random((3, 4), 1)]),
    Case("OneHot", [np.round(random((2, 3), scale=2)), np.float32(3), np.float32([0.5, 2])]),
    *[image(op, axes=[1]) for op in REDUCED],
    *[image(op, whole(1, 2)) for op in REDUCED],
    *[image("Resize", None, SCALES, mode=mode) for mode in ("nearest", "linear", "cubic")],
    *[image("Resize", None, None, whole(1, 4, 3, 9), mode=mode) for mode in ("nearest", "linear", "cubic")],
    *[image("Resize", None, None, whole(1, 4, 3, 2), mode=mode, antialias=1) for mode in ("linear", "cubic")],
    *[image(op, SCALES, mode=mode) for op in ("Upsample", "Resize") for mode in ("nearest", "linear")],
    Case("RotaryEmbedding", [random((2, 4, 5, 8)), random((2, 5, 1), 1), random((2, 5, 1), 2)], {"rotary_embedding_dim": 2}),
    image("Slice", starts=[1], ends=[3]),
    *[image("Split", results=2), image("Split", axis=1)],
    *[image("SwiGLU", random(IMAGE, 1))],
    Case("TopK", [random(ROWS), whole(2)], results=2),
    rows("Transpose"),
    *[rows("Unsqueeze", whole(2)), rows("Unsqueeze", axes=[1])],
]

#: Operators on bytes and booleans, whose attributes are those of operators on floats or describe the bytes.
OTHERS = {"ConvInteger", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "QLinearConv", "QLinearMatMul", "QuantizeLinear"}
OTHERS |= {"And", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Not", "Or", "Where", "Xor"}
CASES += [image(op) for op in sorted(RULES.keys() - OTHERS - {case.op for case in CASES}) if "." not in op]

WORDS = {
    "activations": [["Relu"], ["Tanh", "Relu"], ["Tanh", "Relu", "Tanh"]],
    "approximate": ["tanh"],
    "auto_pad": ["VALID", "SAME_UPPER", "SAME_LOWER"],
    "coordinate_transformation_mode": [
        *("asymmetric", "align_corners", "half_pixel", "pytorch_half_pixel", "half_pixel_symmetric"),
        *("tf_crop_and_resize", "tf_half_pixel_for_nn"),
    ],
    "direction": ["reverse", "bidirectional"],
    "equation": ["ab,bc->ca", "ab,cb->ac", "ii,ij->j"],
    "keep_aspect_ratio_policy": ["not_larger", "not_smaller"],
    "mode": ["linear", "cubic", "bilinear", "bicubic", "nearest", "reflect", "edge", "wrap", "CRD", "DCR"],
    "nearest_mode": ["floor", "ceil", "round_prefer_ceil", "round_prefer_floor"],
    "padding_mode": ["border", "reflection"],
    "reduction": ["add", "mul", "max", "min"],
}
LISTS = [[2, 1], [1, 2], [1], [2, 0, 1], [0, 2, 1], [1, 1, 1, 1], [13, 11], [12, 10], [2, 2], [3, 2]]
WHOLE = {
    **{key: [-1, 0, 1, 2] for key in ("axis", "batch_dims", "start", "end", "k")},
    **{key: [TensorProto.FLOAT, TensorProto.INT64, TensorProto.DOUBLE] for key in ("to", "dtype")},
    **{key: [1, 2, 3, 4] for key in ("blocksize", "group", "num_groups", "num_heads", "num_outputs", "p", "size")},
    **{key: [1, 2, 4] for key in ("kv_num_heads", "q_num_heads", "rotary_embedding_dim")},
    **{key: [1, 2] for key in ("left_window_size", "right_window_size", "qk_matmul_output_mode")},
    **{key: [1, TensorProto.FLOAT16] for key in ("stash_type", "softmax_precision")},
    "hidden_size": [4],
}


def values(attribute):
    """Return values to try for an attribute."""
    if attribute.type == defs.OpSchema.AttrType.INTS:
        return [*LISTS, *([[1, 0], [0], [-1], [1, 0, 1, 1], [0, 1, 0, 0]] if attribute.name in ("pads", "axes", "output_padding") else [])]
    usual = {defs.OpSchema.AttrType.FLOAT: [0.2, 1.7], defs.OpSchema.AttrType.FLOATS: [[0.3], [0.3, 0.4, 0.5]]}
    return (WORDS | WHOLE).get(attribute.name) or usual.get(attribute.type, [0, 1])


def history(op):
    """Yield each version of an operator in the supported opsets: an opset and its attributes."""
    forms = [schema for schema in defs.get_all_schemas_with_history() if (schema.name, schema.domain) == (op, "")]
    newer = sorted(schema.since_version for schema in forms)
    for schema in forms:
        last = next((since - 1 for since in newer if since > schema.since_version), OPSETS[-1])
        if last in OPSETS and not schema.deprecated:
            yield max(OPSETS[0], schema.since_version), schema.attributes


def outcome(path, case):
    """Return ``same``, the message of the refusal, or the distance from ONNX Runtime; None without a result to compare."""
    save(path, case)
    want = case.computed()
    if want is None or not all(np.isfinite(part).all() for part in want if part.dtype.kind == "f"):
        return None
    try:
        module = read_module(path)
    except StretchError as error:
        return None if "computes nothing from its input" in error.message else error.message
    with torch.no_grad():
        got = module(torch.from_numpy(case.inputs[0]))
    parts = list(got.values()) if isinstance(got, dict) else [got]
    for part, right in zip(parts, want, strict=True):
        part = part.numpy()
        if part.shape != right.shape or part.dtype != np.float32:
            return -1.0
        if np.abs(part.astype(float) - right).max(initial=0) > CLOSE * max(1.0, float(np.abs(right).max(initial=0))):
            return float(np.abs(part.astype(float) - right).max())
    return "same"


#: Attributes for which ONNX Runtime, or the tested node, accepts no other value.
SETTLED = {
    "Attention": {"left_window_size", "right_window_size"},
    "Cast": {"round_mode"},
    "CastLike": {"round_mode"},
    "Dropout": {"ratio", "seed"},
    "EyeLike": {"dtype", "k"},
    "Pad": {"pads"},
    "Resize": {"axes"},
    "Shape": {"start", "end"},
    "SpaceToDepth": {"mode"},
    "SwiGLU": {"alpha"},
    "TopK": {"k"},
}


@pytest.mark.representatives(6)
@pytest.mark.parametrize("op", sorted({case.op for case in CASES}))
def test_attribute_has_the_effect_it_has_in_the_runtime_or_is_refused_by_name(tmp_path, op):
    wrong, tried, known = [], set(SETTLED.get(op, ())), set()
    for case in (case for case in CASES if case.op == op):
        for opset, attributes in history(op):
            known |= attributes.keys()
            usual = replace(case, opset=opset, attrs={name: value for name, value in case.attrs.items() if name in attributes})
            for name, attribute in attributes.items():
                for value in values(attribute):
                    changed = replace(usual, attrs={**usual.attrs, name: value})
                    result = outcome(tmp_path / "m.onnx", changed)
                    tried |= {name} if result is not None else set()
                    if isinstance(result, float) or (result not in (None, "same") and not (f"({op})" in result and name in result)):
                        wrong.append((changed.attrs, opset, result))
    assert not wrong
    assert tried >= known


@pytest.mark.parametrize("kind", [TensorProto.INT32, TensorProto.INT64])
@pytest.mark.parametrize("divisor", [3, [2, -3, 4]])
def test_integer_quotients_are_rounded_towards_zero(tmp_path, kind, divisor):
    numbers = np.asarray(divisor, {TensorProto.INT32: np.int32, TensorProto.INT64: np.int64}[kind])
    nodes = [
        helper.make_node("Cast", ["x"], ["whole"], to=kind),
        helper.make_node("Div", ["whole", "by"], ["quotient"]),
        helper.make_node("Cast", ["quotient"], ["y"], to=TensorProto.FLOAT),
    ]
    same(tmp_path / "m.onnx", net(*nodes, stored={"by": numbers}), random((1, 4, 5, 3), scale=9))
