"""An operator graph and its weights to ONNX, node by node."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from predictors.graph import Op, OpGraph
from predictors.operators import kind_of
from predictors.shapes import integer, ints, number

#: HardSwish needs 14, Gelu 20; what newer ones add we do not use.
OPSET = 20
IR_VERSION = 10

#: Node attributes a scheduler reads (paper 003, section 3: meeting point and processor).
NODE_TAGS = {"stretch.meeting_point": "meeting_point", "stretch.processor": "processor", "stretch.subgraph": "subgraph"}

#: Serialised ONNX cannot exceed 2 GB; above this the weights go to a file of their own.
EXTERNAL_ABOVE = 1 << 30

Arrays = Mapping[str, Mapping[str, NDArray[np.float32]]]
Nodes = list[onnx.NodeProto]


class _Writer:
    """Collects nodes and initialisers of one ONNX graph."""

    def __init__(self, weights: Arrays) -> None:
        self.weights = weights
        self.nodes: Nodes = []
        self.initialisers: list[onnx.TensorProto] = []

    def weight(self, op: Op, key: str) -> str:
        return self.constant(f"{op.name}.{key}", np.ascontiguousarray(self.weights[op.name][key], dtype=np.float32))

    def constant(self, name: str, value: NDArray[Any]) -> str:
        dtype = TensorProto.INT64 if value.dtype == np.int64 else TensorProto.FLOAT
        self.initialisers.append(helper.make_tensor(name, dtype, value.shape, value.tobytes(), raw=True))
        return name

    def node(self, kind: str, op: Op, inputs: Iterable[str], output: str | None = None, **attributes: Any) -> None:
        suffix = "" if output is None else f".{kind.lower()}"
        self.nodes.append(helper.make_node(kind, list(inputs), [output or op.name], name=op.name + suffix, **attributes))


def _conv(w: _Writer, op: Op, ins: list[str]) -> None:
    inputs = [ins[0], w.weight(op, "weight"), *([w.weight(op, "bias")] if op.attrs["bias"] else [])]
    a = op.attrs
    w.node(
        "Conv",
        op,
        inputs,
        kernel_shape=ints(a, "kernel"),
        strides=ints(a, "stride"),
        pads=ints(a, "padding"),
        dilations=ints(a, "dilation"),
        group=a["groups"],
    )


def _linear(w: _Writer, op: Op, ins: list[str]) -> None:
    w.node("Gemm", op, [ins[0], w.weight(op, "weight"), *([w.weight(op, "bias")] if op.attrs["bias"] else [])], transB=1)


def _batch_norm(w: _Writer, op: Op, ins: list[str]) -> None:
    own = w.weights[op.name]
    channels = op.shape[1]
    affine = [
        w.weight(op, key) if key in own else w.constant(f"{op.name}.{key}", np.full(channels, fill, np.float32))
        for key, fill in (("weight", 1.0), ("bias", 0.0))
    ]
    w.node(
        "BatchNormalization",
        op,
        [ins[0], *affine, w.weight(op, "running_mean"), w.weight(op, "running_var")],
        epsilon=number(op.attrs, "eps"),
    )


def _per_channel(kind: str, key: str = "weight") -> "Lower":
    """A node whose second input is one number per channel."""

    def lower(w: _Writer, op: Op, ins: list[str]) -> None:
        values = np.asarray(w.weights[op.name][key], np.float32).reshape(-1, *[1] * (len(op.shape) - 2))
        w.node(kind, op, [ins[0], w.constant(f"{op.name}.{key}", np.ascontiguousarray(values))])

    return lower


def _scalar(kind: str) -> "Lower":
    def lower(w: _Writer, op: Op, ins: list[str]) -> None:
        w.node(kind, op, [ins[0], w.constant(f"{op.name}.value", np.array(number(op.attrs, "value"), np.float32))])

    return lower


def _layer_norm(w: _Writer, op: Op, ins: list[str]) -> None:
    """ONNX normalises the last dimensions, so channels go last for as long as it takes."""
    own, channels, rank = w.weights.get(op.name, {}), op.shape[1], len(op.shape)
    affine = [
        w.weight(op, key) if key in own else w.constant(f"{op.name}.{key}", np.full(channels, fill, np.float32))
        for key, fill in (("weight", 1.0), ("bias", 0.0))
    ]
    epsilon = number(op.attrs, "eps")
    if rank == 2:
        w.node("LayerNormalization", op, [ins[0], *affine], axis=-1, epsilon=epsilon)
        return
    w.node("Transpose", op, ins, output=f"{op.name}.last", perm=[0, *range(2, rank), 1])
    w.node("LayerNormalization", op, [f"{op.name}.last", *affine], output=f"{op.name}.normed", axis=-1, epsilon=epsilon)
    w.node("Transpose", op, [f"{op.name}.normed"], perm=[0, rank - 1, *range(1, rank - 1)])


def _channel_shuffle(w: _Writer, op: Op, ins: list[str]) -> None:
    groups = integer(op.attrs, "groups")
    n, c, height, width = op.shape
    split = w.constant(f"{op.name}.split", np.array([n, groups, c // groups, height, width], np.int64))
    whole = w.constant(f"{op.name}.whole", np.array([n, c, height, width], np.int64))
    w.node("Reshape", op, [ins[0], split], output=f"{op.name}.groups")
    w.node("Transpose", op, [f"{op.name}.groups"], output=f"{op.name}.swapped", perm=[0, 2, 1, 3, 4])
    w.node("Reshape", op, [f"{op.name}.swapped", whole])


def _upsample(w: _Writer, op: Op, ins: list[str]) -> None:
    scales = w.constant(f"{op.name}.scales", np.array([1, 1, *ints(op.attrs, "scale")], np.float32))
    attributes = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    w.node("Resize", op, [ins[0], "", scales], **attributes)


def _relu6(w: _Writer, op: Op, ins: list[str]) -> None:
    low, high = (w.constant(f"{op.name}.{key}", np.array(value, np.float32)) for key, value in (("low", 0.0), ("high", 6.0)))
    w.node("Clip", op, [ins[0], low, high])


def _silu(w: _Writer, op: Op, ins: list[str]) -> None:
    w.node("Sigmoid", op, ins, output=f"{op.name}.sigmoid")
    w.node("Mul", op, [ins[0], f"{op.name}.sigmoid"])


def _pool(kind: str) -> "Lower":
    def lower(w: _Writer, op: Op, ins: list[str]) -> None:
        a = op.attrs
        extra = {"dilations": ints(a, "dilation")} if kind == "MaxPool" else {"count_include_pad": int(bool(a["count_include_pad"]))}
        common = {
            "kernel_shape": ints(a, "kernel"),
            "strides": ints(a, "stride"),
            "pads": ints(a, "padding"),
            "ceil_mode": int(bool(a["ceil_mode"])),
        }
        w.node(kind, op, ins, **common, **extra)

    return lower


def _global_pool(kind: str) -> "Lower":
    def lower(w: _Writer, op: Op, ins: list[str]) -> None:
        if op.attrs["keepdims"]:
            w.node(kind, op, ins)
        else:
            w.node(kind, op, ins, output=f"{op.name}.pooled")
            w.node("Flatten", op, [f"{op.name}.pooled"], axis=1)

    return lower


def _pad(w: _Writer, op: Op, ins: list[str]) -> None:
    top, left, bottom, right = ints(op.attrs, "padding")
    w.node("Pad", op, [ins[0], w.constant(f"{op.name}.pads", np.array([0, 0, top, left, 0, 0, bottom, right], np.int64))])


def _slice(w: _Writer, op: Op, ins: list[str]) -> None:
    bounds = [
        w.constant(f"{op.name}.{key}", np.array([value], np.int64))
        for key, value in (("start", op.attrs["start"]), ("stop", op.attrs["stop"]), ("axis", 1))
    ]
    w.node("Slice", op, [ins[0], *bounds])


def _plain(kind: str, **attributes: Any) -> "Lower":
    return lambda w, op, ins: w.node(kind, op, ins, **attributes)


Lower = Callable[[_Writer, Op, list[str]], None]

_LOWER: dict[str, Lower] = {
    "conv": _conv,
    "linear": _linear,
    "batch_norm": _batch_norm,
    "relu": _plain("Relu"),
    "relu6": _relu6,
    "hard_swish": _plain("HardSwish"),
    "hard_sigmoid": _plain("HardSigmoid", alpha=1 / 6, beta=0.5),
    "silu": _silu,
    "sigmoid": _plain("Sigmoid"),
    "tanh": _plain("Tanh"),
    "gelu": lambda w, op, ins: w.node("Gelu", op, ins, approximate=str(op.attrs["approximate"])),
    "elu": lambda w, op, ins: w.node("Elu", op, ins, alpha=number(op.attrs, "alpha")),
    "leaky_relu": lambda w, op, ins: w.node("LeakyRelu", op, ins, alpha=number(op.attrs, "slope")),
    "mish": _plain("Mish"),
    "prelu": _per_channel("PRelu"),
    "scale": _per_channel("Mul"),
    "shift": _per_channel("Add", "bias"),
    "add_scalar": _scalar("Add"),
    "mul_scalar": _scalar("Mul"),
    "layer_norm": _layer_norm,
    "softmax": _plain("Softmax", axis=1),
    "log_softmax": _plain("LogSoftmax", axis=1),
    "channel_shuffle": _channel_shuffle,
    "upsample": _upsample,
    "add": lambda w, op, ins: w.node("Add" if len(ins) == 2 else "Sum", op, ins),
    "mul": _plain("Mul"),
    "concat": _plain("Concat", axis=1),
    "max_pool": _pool("MaxPool"),
    "avg_pool": _pool("AveragePool"),
    "global_avg_pool": _global_pool("GlobalAveragePool"),
    "global_max_pool": _global_pool("GlobalMaxPool"),
    "flatten": _plain("Flatten", axis=1),
    "unflatten": lambda w, op, ins: w.node("Unsqueeze", op, [ins[0], w.constant(f"{op.name}.axes", np.array([2, 3], np.int64))]),
    "pad": _pad,
    "slice": _slice,
}


def to_onnx(graph: OpGraph, weights: Arrays, properties: Mapping[str, str] | None = None) -> onnx.ModelProto:
    """Lower a graph to ONNX.

    Operators that are identities at inference leave no node, unless one is the
    output. Each node carries the tags of its operator as `metadata_props`
    (`NODE_TAGS`), written last since few tools keep them.

    Args:
        graph: The operators.
        weights: Float32 arrays by operator name and key.
        properties: Model-level `metadata_props`.

    Returns:
        The model; its input is called like the graph's input operator and its
        output like the output operator.
    """
    writer = _Writer(weights)
    name_of: dict[str, str] = {}
    for op in graph.ops:
        if op.kind == "input":
            name_of[op.name] = op.name
            continue
        ins = [name_of[i] for i in op.inputs]
        before = len(writer.nodes)
        if kind_of(op.kind).identity:
            if op.name != graph.output:
                name_of[op.name] = ins[0]
                continue
            writer.node("Identity", op, ins)
        else:
            _LOWER[op.kind](writer, op, ins)
        name_of[op.name] = op.name
        for node in writer.nodes[before:]:
            for prop, tag in NODE_TAGS.items():
                if tag in op.tags:
                    entry = node.metadata_props.add()
                    entry.key, entry.value = prop, op.tags[tag]
    output = graph.by_name[graph.output]
    proto = helper.make_graph(
        writer.nodes,
        graph.name,
        [helper.make_tensor_value_info(graph.input.name, TensorProto.FLOAT, graph.input.shape)],
        [helper.make_tensor_value_info(output.name, TensorProto.FLOAT, output.shape)],
        initializer=writer.initialisers,
    )
    model = helper.make_model(proto, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="nn-stretch", ir_version=IR_VERSION)
    helper.set_model_props(model, dict(properties or {}))
    return model


def save_onnx(model: onnx.ModelProto, path: Path) -> list[Path]:
    """Write a model; its weights go to ``<name>.data`` beside it when they are above 1 GB.

    Returns:
        The files written.
    """
    size = sum(len(t.raw_data) for t in model.graph.initializer)
    if size <= EXTERNAL_ABOVE:
        path.write_bytes(model.SerializeToString())
        return [path]
    data = path.with_name(path.name + ".data")
    onnx.save_model(model, str(path), save_as_external_data=True, all_tensors_to_one_file=True, location=data.name, size_threshold=1024)
    return [path, data]


def to_numpy(weights: Mapping[str, Mapping[str, Any]]) -> Arrays:
    """Torch tensors as float32 arrays that share their memory where they can."""
    return {name: {key: tensor.detach().cpu().float().numpy() for key, tensor in own.items()} for name, own in weights.items()}
