"""Single ONNX operators with random shapes and attributes, as hypothesis strategies."""

from dataclasses import dataclass, field

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import helper, shape_inference

from tests.scheduler.bundles import onnx_model

OPSET = 20


@dataclass
class Case:
    """One operator, its inputs and its constants."""

    op: str
    inputs: list
    attrs: dict = field(default_factory=dict)
    constants: dict = field(default_factory=dict)

    def save(self, path):
        """Write the operator as a model; returns the output's shape."""
        names = [f"x{i}" for i in range(len(self.inputs))]
        inputs = {name: x.shape for name, x in zip(names, self.inputs, strict=True)}
        weights = {name: array for name, array in self.constants.items() if array is not None}
        reads = names + [n if a is not None else "" for n, a in self.constants.items()]
        node = helper.make_node(self.op, reads, ["y"], name="node", **self.attrs)
        # Before opset 22 the inference counts pooling windows that start in the padding; no runtime computes them.
        inferred = onnx_model([node], inputs, {"y": None}, weights, 22)
        inferred = shape_inference.infer_shapes(inferred, strict_mode=True, data_prop=True)
        model = helper.make_model(inferred.graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
        onnx.save(model, str(path))
        return tuple(d.dim_value for d in model.graph.output[0].type.tensor_type.shape.dim)


def floats(shape, seed, scale=1.0):
    return (np.random.default_rng(seed).normal(size=shape) * scale).astype(np.float32)


seeds = st.integers(0, 2**32 - 1)
sizes = st.integers(1, 9)
images = st.tuples(st.integers(1, 2), st.integers(1, 8), sizes, sizes)


@st.composite
def elementwise(draw, op, scale=4.0, **attrs):
    drawn = {name: draw(values) for name, values in attrs.items()}
    return Case(op, [floats(draw(images), draw(seeds), scale)], drawn)


@st.composite
def conv(draw):
    groups = draw(st.sampled_from([1, 1, 2, 4]))
    kernel = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    dilations = draw(st.tuples(st.integers(1, 2), st.integers(1, 2)))
    pads = draw(st.tuples(*[st.integers(0, 2)] * 4))
    strides = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    depthwise = draw(st.booleans())
    channels = groups * (1 if depthwise else draw(st.integers(1, 4)))
    outputs = groups * draw(st.integers(1, 4))
    shape = [draw(st.integers(1, 2)), channels]
    for axis in (0, 1):
        reach = dilations[axis] * (kernel[axis] - 1) + 1
        shape.append(draw(st.integers(max(1, reach - pads[axis] - pads[axis + 2]), 10)))
    seed = draw(seeds)
    bias = floats((outputs,), seed + 2) if draw(st.booleans()) else None
    return Case(
        "Conv",
        [floats(shape, seed)],
        {"kernel_shape": kernel, "dilations": dilations, "pads": pads, "strides": strides, "group": groups},
        {"w": floats((outputs, channels // groups, *kernel), seed + 1)} | ({} if bias is None else {"b": bias}),
    )


@st.composite
def pool(draw, op, **extra):
    kernel = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    # Torch and some backends allow pads of at most half a window.
    pads = tuple(draw(st.integers(0, kernel[axis] // 2)) for axis in (0, 1)) * 2
    strides = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    shape = (draw(st.integers(1, 2)), draw(st.integers(1, 4)), *(draw(st.integers(kernel[axis], 10)) for axis in (0, 1)))
    attrs = {"kernel_shape": kernel, "pads": pads, "strides": strides, "ceil_mode": draw(st.integers(0, 1))}
    return Case(op, [floats(shape, draw(seeds))], attrs | {name: draw(values) for name, values in extra.items()})


@st.composite
def batch_norm(draw):
    shape, seed = draw(images), draw(seeds)
    c = (shape[1],)
    constants = {name: floats(c, seed + number) for number, name in enumerate(("scale", "b", "mean", "var"), 1)}
    constants["var"] = np.abs(constants["var"]) + 0.1
    return Case("BatchNormalization", [floats(shape, seed)], {"epsilon": draw(st.sampled_from([1e-5, 1e-3]))}, constants)


@st.composite
def clip(draw):
    low, high = sorted(draw(st.tuples(st.integers(-3, 3), st.integers(-3, 6))))
    constants = {"low": np.float32(low) if draw(st.booleans()) else None, "high": np.float32(high)}
    return Case("Clip", [floats(draw(images), draw(seeds), 4)], {}, {k: None if v is None else np.array(v) for k, v in constants.items()})


@st.composite
def binary(draw, op):
    shape, seed = draw(images), draw(seeds)
    other = tuple(n if draw(st.booleans()) else 1 for n in shape)
    return Case(op, [floats(shape, seed), floats(other, seed + 1)])


@st.composite
def several(draw, op, axis=None):
    shape, seed = draw(images), draw(seeds)
    count = draw(st.integers(1 if op == "Sum" else 2, 4))
    if axis is None:
        return Case(op, [floats(shape, seed + i) for i in range(count)])
    return Case(op, [floats((shape[0], draw(st.integers(1, 5)), *shape[2:]), seed + i) for i in range(count)], {"axis": axis})


@st.composite
def gemm(draw, op):
    n, k, m = draw(st.tuples(st.integers(1, 3), st.integers(1, 20), st.integers(1, 12)))
    turned, seed = op == "Gemm" and draw(st.booleans()), draw(seeds)
    constants = {"w": floats((m, k) if turned else (k, m), seed + 1)}
    if op == "MatMul":
        return Case(op, [floats((draw(st.integers(1, 2)), n, k), seed)], {}, constants)
    return Case(
        op, [floats((n, k), seed)], {"transB": int(turned)}, constants | ({"b": floats((m,), seed + 2)} if draw(st.booleans()) else {})
    )


@st.composite
def pad(draw):
    widths = np.array([0, 0, *draw(st.tuples(sizes, sizes)), 0, 0, *draw(st.tuples(sizes, sizes))], np.int64)
    constants = {"pads": widths} | ({"value": np.array(draw(st.integers(-2, 2)), np.float32)} if draw(st.booleans()) else {})
    return Case("Pad", [floats(draw(images), draw(seeds))], {}, constants)


@st.composite
def channel_or_row_slice(draw):
    shape, axis = draw(images), draw(st.sampled_from([1, 2]))
    start = draw(st.integers(0, shape[axis] - 1))
    stop = draw(st.integers(start + 1, shape[axis]))
    bounds = {"start": start, "stop": stop, "axis": axis}
    return Case("Slice", [floats(shape, draw(seeds))], {}, {name: np.array([bound], np.int64) for name, bound in bounds.items()})


@st.composite
def reshape(draw):
    n, c, h, w = shape = draw(images)
    left_open = [(n, -1), (0, c * h, w), (-1,), (0, 0, h * w)]
    wanted = draw(st.sampled_from([(n * c, h, w), (n, c * h * w), (h, n, w, c), *left_open]))
    return Case("Reshape", [floats(shape, draw(seeds))], {}, {"shape": np.array(wanted, np.int64)})


@st.composite
def reduce_mean(draw):
    axes = draw(st.sampled_from([(2, 3), (-2, -1), (1,), (2,), (0, 1, 2, 3)]))
    attrs = {"keepdims": draw(st.integers(0, 1))}
    return Case("ReduceMean", [floats(draw(images), draw(seeds))], attrs, {"axes": np.array(axes, np.int64)})


@st.composite
def squeezes(draw, op):
    n, c = draw(st.tuples(sizes, sizes))
    shape = (n, c, 1, 1) if op == "Squeeze" else (n, c)
    return Case(op, [floats(shape, draw(seeds))], {}, {"axes": np.array((2, 3), np.int64)})


@st.composite
def layer_norm(draw):
    shape, seed = draw(images), draw(seeds)
    # One element alone has no deviation, and dividing by the epsilon's root only shows rounding.
    shape = (*shape[:3], shape[3] + 3)
    last = shape[3:]
    constants = {"scale": floats(last, seed + 1)} | ({"b": floats(last, seed + 2)} if draw(st.booleans()) else {})
    return Case("LayerNormalization", [floats(shape, seed)], {"axis": -1, "epsilon": draw(st.sampled_from([1e-5, 1e-3]))}, constants)


@st.composite
def prelu(draw):
    shape, seed = draw(images), draw(seeds)
    return Case("PRelu", [floats(shape, seed)], {}, {"slope": floats((shape[1], 1, 1), seed + 1)})


@st.composite
def resize(draw):
    scales = np.array([1, 1, *draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))], np.float32)
    attrs = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return Case("Resize", [floats(draw(images), draw(seeds))], attrs, {"roi": None, "scales": scales})


OPS = {
    **{op: elementwise(op) for op in ("GlobalAveragePool", "GlobalMaxPool", "HardSwish", "Identity", "Mish", "Relu", "Tanh")},
    **{op: make(op) for make, *ops in ((binary, "Add", "Mul"), (squeezes, "Squeeze", "Unsqueeze"), (gemm, "Gemm", "MatMul")) for op in ops},
    "AveragePool": pool("AveragePool", count_include_pad=st.integers(0, 1)),
    "BatchNormalization": batch_norm(),
    "Clip": clip(),
    "Concat": several("Concat", 1),
    "Conv": conv(),
    "Elu": elementwise("Elu", alpha=st.sampled_from([0.5, 1.0, 2.0])),
    "Flatten": elementwise("Flatten", axis=st.integers(0, 3)),
    "Gelu": elementwise("Gelu", approximate=st.sampled_from(["none", "tanh"])),
    "HardSigmoid": elementwise("HardSigmoid", alpha=st.sampled_from([0.2, 1 / 6]), beta=st.just(0.5)),
    "LayerNormalization": layer_norm(),
    "LeakyRelu": elementwise("LeakyRelu", alpha=st.sampled_from([0.01, 0.2])),
    "LogSoftmax": elementwise("LogSoftmax", axis=st.sampled_from([1, 2, -1])),
    "MaxPool": pool("MaxPool"),
    "Pad": pad(),
    "PRelu": prelu(),
    "ReduceMean": reduce_mean(),
    "Reshape": reshape(),
    "Resize": resize(),
    "Sigmoid": elementwise("Sigmoid", scale=30.0),
    "Slice": channel_or_row_slice(),
    "Softmax": elementwise("Softmax", axis=st.sampled_from([1, 2, -1])),
    "Sum": several("Sum"),
    "Transpose": elementwise("Transpose", perm=st.permutations(range(4))),
}


def run(delegate, path, case, shape):
    # NaN, so that an element which is not written shows.
    output = np.full(shape, np.nan, np.float32)
    delegate.compile(path).run([np.ascontiguousarray(x) for x in case.inputs], [output])
    return output
