"""From the ONNX files of a bundle back to operator graphs, without torch."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from onnx import NodeProto, helper, numpy_helper

from predictors.errors import StretchError
from predictors.graph import Op, OpGraph
from predictors.shapes import Attr
from scheduler.formats.onnx_file import graph_shapes, load_onnx

#: Carry the scales of an int8 subgraph, or stand at the edges of an fp16 one.
QUANTISERS = ("QuantizeLinear", "DequantizeLinear", "Cast")

Values = dict[str, Any]
Reader = Callable[[Values, Values, NodeProto], tuple[str, dict[str, Attr]]]


def _window(attrs: Values) -> dict[str, Attr]:
    stride, padding = attrs.get("strides", (1, 1)), attrs.get("pads", (0, 0, 0, 0))
    return {"kernel": tuple(attrs["kernel_shape"]), "stride": tuple(stride), "padding": tuple(padding)}


def _conv(attrs: Values, weights: Values, node: NodeProto) -> tuple[str, dict[str, Attr]]:
    rest = {"dilation": tuple(attrs.get("dilations", (1, 1))), "groups": attrs.get("group", 1), "bias": len(node.input) > 2}
    return "conv", {"out_channels": weights[node.input[1]].dims[0], **_window(attrs), **rest}


def _linear(attrs: Values, weights: Values, node: NodeProto) -> tuple[str, dict[str, Attr]]:
    return "linear", {"out_features": weights[node.input[1]].dims[0], "bias": len(node.input) > 2}


def _clip(attrs: Values, weights: Values, node: NodeProto) -> tuple[str, dict[str, Attr]]:
    bounds = [float(numpy_helper.to_array(weights[name])) for name in node.input[1:]]
    if bounds != [0.0, 6.0]:
        raise ValueError(f"it clips to {bounds}")
    return "relu6", {}


def _pool(kind: str) -> Reader:
    def read(attrs: Values, weights: Values, node: NodeProto) -> tuple[str, dict[str, Attr]]:
        rest: dict[str, Attr] = {"ceil_mode": bool(attrs["ceil_mode"])}
        rest |= {"dilation": tuple(attrs["dilations"])} if kind == "max_pool" else {"count_include_pad": bool(attrs["count_include_pad"])}
        return kind, {**_window(attrs), **rest}

    return read


def _pad(attrs: Values, weights: Values, node: NodeProto) -> tuple[str, dict[str, Attr]]:
    widths = [int(n) for n in numpy_helper.to_array(weights[node.input[1]])]
    return "pad", {"padding": (widths[2], widths[3], widths[6], widths[7])}


def _slice(attrs: Values, weights: Values, node: NodeProto) -> tuple[str, dict[str, Attr]]:
    start, stop = (int(numpy_helper.to_array(weights[name])[0]) for name in node.input[1:3])
    return "slice", {"start": start, "stop": stop}


def _per_channel_or_scalar(kind: str, scalar: str, channels: str) -> Reader:
    """Element-wise with another tensor, or with one number, or with one number per channel."""

    def read(attrs: Values, weights: Values, node: NodeProto) -> tuple[str, dict[str, Attr]]:
        other = weights.get(node.input[1])
        if other is None:
            return kind, {}
        if not other.dims:
            return scalar, {"value": float(numpy_helper.to_array(other))}
        return channels, {}

    return read


def _shuffle_part(attrs: Values, weights: Values, node: NodeProto) -> tuple[str, dict[str, Attr]]:
    """A reshape that a channel shuffle begins or ends with; `_reunited` makes one operator of them."""
    sizes = [int(n) for n in numpy_helper.to_array(weights[node.input[1]])]
    return "channel_shuffle", {"groups": sizes[1] if len(sizes) == 5 else 0}


def _upsample(attrs: Values, weights: Values, node: NodeProto) -> tuple[str, dict[str, Attr]]:
    scales = [int(n) for n in numpy_helper.to_array(weights[node.input[2]])]
    return "upsample", {"scale": (scales[2], scales[3])}


def _plain(kind: str, **attributes: Attr) -> Reader:
    return lambda attrs, weights, node: (kind, dict(attributes))


_READ: dict[str, Reader] = {
    "Add": _per_channel_or_scalar("add", "add_scalar", "shift"),
    "AveragePool": _pool("avg_pool"),
    "BatchNormalization": lambda attrs, weights, node: ("batch_norm", {"eps": attrs["epsilon"], "affine": True}),
    "Clip": _clip,
    "Concat": _plain("concat"),
    "Conv": _conv,
    "Elu": lambda attrs, weights, node: ("elu", {"alpha": attrs["alpha"]}),
    "Flatten": _plain("flatten"),
    "Gelu": lambda attrs, weights, node: ("gelu", {"approximate": attrs["approximate"].decode()}),
    "Gemm": _linear,
    "GlobalAveragePool": _plain("global_avg_pool", keepdims=True),
    "GlobalMaxPool": _plain("global_max_pool", keepdims=True),
    "HardSigmoid": _plain("hard_sigmoid"),
    "HardSwish": _plain("hard_swish"),
    "Identity": _plain("identity"),
    "LayerNormalization": lambda attrs, weights, node: ("layer_norm", {"eps": attrs["epsilon"], "affine": True}),
    "LogSoftmax": _plain("log_softmax"),
    "LeakyRelu": lambda attrs, weights, node: ("leaky_relu", {"slope": attrs["alpha"]}),
    "MaxPool": _pool("max_pool"),
    "Mish": _plain("mish"),
    "Mul": _per_channel_or_scalar("mul", "mul_scalar", "scale"),
    "PRelu": _plain("prelu"),
    "Pad": _pad,
    "Relu": _plain("relu"),
    "Reshape": _shuffle_part,
    "Resize": _upsample,
    "Sigmoid": _plain("sigmoid"),
    "Slice": _slice,
    "Softmax": _plain("softmax"),
    "Sum": _plain("add"),
    "Tanh": _plain("tanh"),
    # Not a kind: one that does not belong to a layer norm or a shuffle is refused.
    "Transpose": _plain("transpose"),
    "Unsqueeze": _plain("unflatten"),
}


def read_graph(path: Path) -> OpGraph:
    """The operators of a file that `stretch.export.onnx` wrote.

    Operators that are identities at inference were not written and do not come
    back. An operator that became two nodes is one again, under the name of its
    last node. An int8 or fp16 subgraph comes back as if it were in reals.

    Args:
        path: The ONNX file; its weights stay unread where they lie outside.

    Raises:
        StretchError: If it is no ONNX model or has a node that the exporter does not write.
    """
    return graph_of(load_onnx(path), path)


def graph_of(proto: Any, path: Path) -> OpGraph:
    """The operators of a model that is read already.

    Args:
        proto: The `onnx.ModelProto`.
        path: Its file, for messages.

    Raises:
        StretchError: If it has a node that the exporter does not write.
    """
    weights: Values = {tensor.name: tensor for tensor in proto.graph.initializer}
    inputs, outputs = graph_shapes(proto, path)
    if len(inputs) != 1 or len(outputs) != 1:
        raise StretchError(f"{path} has {len(inputs)} inputs and {len(outputs)} outputs, a subgraph has one of each")
    output = next(iter(outputs))
    ops = [Op(name, "input", attrs={"shape": shape}) for name, shape in inputs.items()]
    real: dict[str, str] = {}
    made_by = {node.output[0]: node.input[0] for node in proto.graph.node if node.op_type in QUANTISERS and not node.domain}
    # the last operator of an int8 or fp16 subgraph is called like the output, as in a float one
    last = output
    while last in made_by:
        last = made_by[last]
    for node in proto.graph.node:
        if node.op_type in QUANTISERS and not node.domain:
            # the operator that was quantised is what counts, and its weights in integers have the same shape
            source, made = node.input[0], node.output[0]
            source = output if source == last else source
            if source in weights:
                weights[made] = weights[source]
            else:
                real[made] = real.get(source, source)
            continue
        attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        if node.op_type not in _READ or node.domain:
            raise StretchError(f"node `{node.name}` of {path} is a {node.op_type}, which nn-stretch does not write")
        try:
            kind, own = _READ[node.op_type](attrs, weights, node)
        except (KeyError, IndexError, ValueError) as error:
            raise StretchError(f"node `{node.name}` ({node.op_type}) of {path} is not as nn-stretch writes it: {error}") from error
        reads = tuple(real.get(name, output if name == last else name) for name in node.input if name and name not in weights)
        ops.append(Op(output if node.output[0] == last else node.output[0], kind, reads, own))
    return OpGraph.build(proto.graph.name, _reunited(ops), output)


def _reunited(ops: list[Op]) -> list[Op]:
    """Operators with those that were written as two nodes made one."""
    first = {op.name: op for op in ops}
    gone: set[str] = set()
    merged: list[Op] = []
    for op in ops:
        part = first.get(op.inputs[-1]) if op.inputs else None
        if op.kind == "mul" and part is not None and part.name == f"{op.name}.sigmoid":
            gone.add(part.name)
            op = Op(op.name, "silu", part.inputs)
        elif op.kind == "flatten" and part is not None and part.name == f"{op.name}.pooled":
            gone.add(part.name)
            op = Op(op.name, part.kind, part.inputs, {"keepdims": False})
        elif part is not None and part.name in (f"{op.name}.normed", f"{op.name}.swapped"):
            before = first[part.inputs[0]]
            whole = part if part.name.endswith(".normed") else before
            gone |= {part.name, before.name}
            op = Op(op.name, whole.kind, before.inputs, whole.attrs)
        merged.append(op)
    return [op for op in merged if op.name not in gone]
