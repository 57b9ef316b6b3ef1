"""Random operator graphs per kind with weights, their ONNX and TFLite files, and single-node files of other exporters."""

import math

import msgspec
import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import helper, shape_inference

from predictors.graph import Op, OpGraph
from predictors.operators import kind_of, kinds
from scheduler.bundle.manifest import SubgraphEntry, Tensor, TflitePlan
from scheduler.bundle.tflite_file import METADATA, SCHEMA, nhwc
from tests.scheduler.bundles import onnx_model

#: All kinds, and the kinds that compute something.
ALL_KIND_NAMES = sorted(name for name in kinds if name != "input" and not kind_of(name).stated)
KIND_NAMES = [name for name in ALL_KIND_NAMES if not kind_of(name).identity]

#: Kinds that `stretch export` cannot write in TFLite and refuses by name, and the kinds that it writes.
NO_TFLITE = ("attention", "channel_mean", "channels_first", "div", "global_l2_norm", "group_norm", "rearrange", "roll", "subsample")
TFLITE_KIND_NAMES = [name for name in KIND_NAMES if name not in NO_TFLITE]

sizes = st.integers(1, 9)


@st.composite
def windows(draw, kind):
    kernel = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    stride = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    if kind == "conv":
        groups = draw(st.sampled_from([1, 1, 2, 3, 6]))
        dilation = draw(st.tuples(st.integers(1, 2), st.integers(1, 2)))
        padding = draw(st.tuples(*[st.integers(0, 3)] * 4))
        more = {"groups": groups, "out_channels": groups * draw(st.integers(1, 3)), "bias": draw(st.booleans())}
    else:
        # Torch allows pads of at most half a window.
        dilation = (1, 1)
        high, left = (draw(st.integers(0, kernel[axis] // 2)) for axis in (0, 1))
        top, bottom = draw(st.sampled_from([(high, high), (high, high), (high, 0), (0, high)]))  # bands are padded at image borders only
        padding = (top, left, bottom, left)
        more = {"ceil_mode": draw(st.booleans())}
    smallest = [max(1, dilation[a] * (kernel[a] - 1) + 1 - padding[a] - padding[a + 2]) for a in (0, 1)]
    side = [draw(st.integers(smallest[a], smallest[a] + 9)) for a in (0, 1)]
    attrs = {"kernel": kernel, "stride": stride, "padding": padding}
    if kind == "avg_pool":
        return side, attrs | more | {"count_include_pad": draw(st.booleans())}
    return side, attrs | more | {"dilation": dilation}


@st.composite
def attentions(draw, side):
    heads, (rows, tokens) = draw(st.sampled_from([1, 2, 3, 6])), side
    sizes = st.tuples(st.sampled_from([1, heads]), st.sampled_from([1, rows]), st.just(tokens), st.just(tokens))
    added = {name: draw(sizes) for name in ("bias", "mask") if draw(st.booleans())}
    return {"heads": heads, "keys": tokens, "scale": draw(st.sampled_from([1.0, 0.4])), **added}


@st.composite
def attributes(draw, kind):
    """Height and width of an image, and attributes of a kind for six channels."""
    side = [draw(sizes), draw(sizes)]
    if kind in ("conv", "max_pool", "avg_pool"):
        return draw(windows(kind))
    first = draw(st.integers(0, side[0] - 1))
    value = {
        "linear": {"out_features": draw(sizes), "bias": draw(st.booleans())},
        "batch_norm": {"eps": 1e-3, "momentum": 0.1, "affine": draw(st.booleans())},
        "gelu": {"approximate": draw(st.sampled_from(["none", "tanh"]))},
        "elu": {"alpha": draw(st.sampled_from([1.0, 0.7]))},
        "leaky_relu": {"slope": 0.2},
        "clamp": {"low": draw(st.sampled_from([-1.0, 0.0, 0.5])), "high": draw(st.sampled_from([1.0, 6.0]))},
        "global_avg_pool": {"keepdims": draw(st.booleans())},
        "global_max_pool": {"keepdims": draw(st.booleans())},
        "pad": {"padding": draw(st.tuples(*[st.integers(0, 3)] * 4))},
        "slice": {"start": draw(st.integers(0, 2)), "stop": draw(st.integers(3, 6))},
        "slice_rows": {"start": first, "stop": draw(st.integers(first + 1, side[0]))},
        "channel_shuffle": {"groups": draw(st.sampled_from([1, 2, 3]))},
        "upsample": {"scale": draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))},
        "layer_norm": {"eps": 1e-6, "affine": draw(st.booleans())},
        "group_norm": {"groups": draw(st.sampled_from([1, 2, 3])), "eps": 1e-5, "affine": draw(st.booleans())},
        "global_l2_norm": {"keepdims": draw(st.booleans())},
        "rearrange": {
            "split": tuple(side),
            "order": draw(st.permutations(range(2)).map(tuple)),
            "pixels": draw(st.sampled_from([(1, side[0] * side[1]), tuple(side[::-1])])),
        },
        "roll": {"shift": (draw(st.integers(0, side[0] - 1)), draw(st.integers(0, side[1] - 1)))},
        "subsample": {"start": (first, 0), "stop": tuple(side), "step": draw(st.tuples(*[st.integers(1, 3)] * 2))},
        "channels_first": {"rows": 1},
        "attention": draw(attentions(side)),
        "dropout": {"p": 0.1},
        "stochastic_depth": {"p": 0.1, "mode": "row"},
        "add_scalar": {"value": draw(st.sampled_from([3.0, -0.25]))},
        "mul_scalar": {"value": draw(st.sampled_from([-0.5, 2.0]))},
    }.get(kind, {})
    return side, value


@st.composite
def graphs(draw, kind):
    """A graph whose last operator is of `kind`, its weights and an input."""
    side, attrs = draw(attributes(kind))
    shape = (draw(st.integers(1, 2)), 6, *side)
    ops = [Op("x", "input", attrs={"shape": shape})]
    reads = ("x",)
    if kind in ("linear", "unflatten"):
        ops.append(Op("row", "global_avg_pool", ("x",), {"keepdims": False}) if draw(st.booleans()) else Op("row", "flatten", ("x",)))
        reads = ("row",)
    if kind == "channels_first":
        ops.append(Op("tokens", "view", ("x",), {"shape": (shape[0], 6, side[0] * side[1])}))
        reads = ("tokens",)
    if kind == "attention":
        ops += [Op("key", "mul_scalar", ("x",), {"value": 0.7}), Op("value", "mul_scalar", ("x",), {"value": -1.3})]
        reads = ("x", "key", "value")
    elif kind_of(kind).min_inputs > 1:
        small = kind in ("add", "mul") and draw(st.booleans())
        other = ("global_avg_pool", ("x",), {"keepdims": True}) if small else ("mul_scalar", ("x",), {"value": 0.7})
        ops.append(Op("other", *other))
        orders = [("x", "other"), ("other", "x")] + ([("x", "other", "x")] if kind in ("add", "concat", "concat_rows") else [])
        reads = draw(st.sampled_from(orders))
    ops.append(Op("y", kind, reads, attrs))
    graph = OpGraph.build(f"case.{kind}", ops, "y")
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return graph, weights_of(graph, random), random.normal(0, 2, shape).astype(np.float32)


def weights_of(graph, random):
    """Normally distributed weights; variances are positive."""
    weights = {}
    for op in graph.ops:
        current = {key: random.normal(size=shape).astype(np.float32) for key, shape in graph.op_weights(op).items()}
        if "running_var" in current:
            current["running_var"] = np.abs(current["running_var"]) + 0.1
        if current:
            weights[op.name] = current
    return weights


def plan_of(graph, name="case"):
    ends = ((graph.input.name, graph.input.shape, "input", (name,)), (graph.output, graph.by_name[graph.output].shape, name, ("output",)))
    tensors = tuple(Tensor(t, nhwc(s), built, read, layout="NHWC" if len(s) == 4 else "NC") for t, s, built, read in ends)
    subgraph = SubgraphEntry(name, "s", "cpu", "model.tflite", (graph.input.name,), (graph.output,), graph.macs)
    return TflitePlan(SCHEMA, "0", graph.name, "none", (graph.input.name,), (graph.output,), tensors, (subgraph,), ())


def tflite_bytes(graph, source, plan=None, half=False):
    """Content of a TFLite file with one signature, ``case``."""
    from stretch.export.tflite import to_tflite
    from stretch.operators.formats.tflite import Writer

    writer = Writer(graph.name)
    to_tflite(writer, "case", source, half=half)
    writer.metadata(METADATA, msgspec.json.encode(plan or plan_of(graph)))
    return bytes(writer.finish())


def save_onnx_file(graph, weights, folder):
    """Write ``op.onnx``."""
    from stretch.export.onnx import save_onnx, to_onnx

    save_onnx(to_onnx(graph, weights), folder / "op.onnx")


def save_both(graph, weights, folder, half=False):
    """Write ``op.onnx`` and ``op.tflite``."""
    from stretch.export.tflite import read_source

    save_onnx_file(graph, weights, folder)
    (folder / "op.tflite").write_bytes(tflite_bytes(graph, read_source(folder / "op.onnx"), half=half))


def run(delegate, path, graph, x):
    return output_of(delegate, path, graph.by_name[graph.output].shape, x)


def output_of(delegate, path, shape, x):
    # With NaN, an element that is not written fails the comparison.
    output = np.full(shape, np.nan, np.float32)
    delegate.compile(path).run([x], [output])
    return output


def save_node(path, op, shape, *constants, **attrs):
    """Write a model with one node, ``node``, that reads an input and constants; return the shape of its output."""
    stored = {f"c{number}": np.asarray(array) for number, array in enumerate(constants) if array is not None}
    reads = ["x", *("" if array is None else f"c{number}" for number, array in enumerate(constants))]
    # Before opset 22, shape inference counts pooling windows that start in the padding, which no runtime computes.
    model = onnx_model([helper.make_node(op, reads, ["y"], name="node", **attrs)], {"x": shape}, {"y": None}, stored, 22)
    inferred = shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    onnx.save(helper.make_model(inferred.graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), str(path))
    return tuple(d.dim_value for d in inferred.graph.output[0].type.tensor_type.shape.dim)


def loaded(module, weights):
    import torch

    named_parameters = dict(module.named_parameters()) | dict(module.named_buffers())
    with torch.no_grad():
        for key, value in weights.items():
            named_parameters[key].copy_(torch.from_numpy(value))
    return module.eval()


def computed(graph, weights, x):
    """Results of every operator in torch; asserts the weights, output shapes and MACs that the graph states."""
    import torch

    from stretch.operators.lowerings import make_module

    values = {graph.input.name: x}
    with torch.inference_mode():
        for op in graph.ops[1:]:
            module = loaded(make_module(op, graph.input_shapes(op)), weights.get(op.name, {}))
            state = {name: weight for name, weight in module.state_dict().items() if "num_" not in name}
            assert {name: tuple(weight.shape) for name, weight in state.items()} == graph.op_weights(op)
            if op.kind in ("conv", "linear"):
                assert graph.op_macs(op) == math.prod(op.shape) * state["weight"][0].numel()
            values[op.name] = module(*[torch.from_numpy(np.ascontiguousarray(values[name])) for name in op.inputs]).numpy()
            assert values[op.name].shape == op.shape
    return values
