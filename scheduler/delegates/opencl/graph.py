"""A subgraph's ONNX file as nodes, constants and shapes, and the passes that simplify it before kernels are chosen."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from scheduler.delegates.base import Array, UnableError
from scheduler.formats.onnx import open_onnx

Shape = tuple[int, ...]

#: Opset below which axes of Pad and ReduceMean are attributes.
MIN_OPSET = 18
#: Element types of ONNX for 32-bit and 16-bit reals.
_REALS = (1, 10)


@dataclass(frozen=True)
class KernelNode:
    """One operator."""

    name: str  # Name of the ONNX node that it comes from.
    op: str  # Operator type, or the name that a pass gave to merged operators.
    inputs: tuple[str, ...]  # Tensors read; empty for an omitted optional input.
    output: str  # Tensor written.
    attrs: Mapping[str, Any] = field(default_factory=dict)  # Attributes as Python values; strings are bytes.
    merged: tuple[str, ...] = ()  # Names of the ONNX nodes that it computes, including itself.

    def with_attrs(self, **attrs: Any) -> "KernelNode":
        """Return a copy with some attributes set."""
        return replace(self, attrs={**self.attrs, **attrs})


@dataclass
class KernelGraph:
    """A subgraph."""

    nodes: list[KernelNode]  # In topological order.
    constants: dict[str, Array]  # Weights by name.
    shapes: dict[str, Shape]  # Shape of every tensor.
    inputs: tuple[str, ...]  # Names of the inputs.
    outputs: tuple[str, ...]  # Names of the outputs.
    removed: dict[str, str] = field(default_factory=dict)  # Reasons why ONNX nodes are no longer in any node, by name.

    def writers(self) -> dict[str, KernelNode]:
        """Return the node that writes each tensor, by tensor name."""
        return {node.output: node for node in self.nodes}

    def only_reader(self, tensor: str) -> KernelNode | None:
        """Return the only reader of a tensor that is not an output, or None."""
        if tensor in self.outputs:
            return None
        readers = [node for node in self.nodes if tensor in node.inputs]
        return readers[0] if len(readers) == 1 and readers[0].inputs.count(tensor) == 1 else None


def read_graph(model: Path) -> KernelGraph:
    """Return the graph in an ONNX file.

    Raises:
        UnableError: If the kernels here cannot compute the file, or a node has several results.
    """
    from onnx import external_data_helper, helper, numpy_helper

    opened = open_onnx(model)
    proto = opened.proto
    external_data_helper.load_external_data_for_model(proto, str(model.parent))
    for opset in proto.opset_import:
        if opset.domain in ("", "ai.onnx") and opset.version < MIN_OPSET:
            raise UnableError(f"{model} uses opset {opset.version}, the opencl delegate reads {MIN_OPSET} and later")
    inputs, outputs = opened.ends
    constants: dict[str, Array] = {tensor.name: _real(numpy_helper.to_array(tensor)) for tensor in proto.graph.initializer}
    nodes: list[KernelNode] = []
    for i, node in enumerate(proto.graph.node):
        name = node.name or f"{node.op_type}_{i}"
        attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        if node.op_type == "Constant" and "value" in attrs:
            constants[node.output[0]] = _real(numpy_helper.to_array(attrs["value"]))
            continue
        if sum(bool(output) for output in node.output) != 1 or node.domain not in ("", "ai.onnx"):
            raise UnableError(f"node `{name}` of {model} is a {node.op_type} that the opencl delegate does not run")
        # The delegate sets the precision: a cast between reals only marks where half precision begins and ends.
        op = "Identity" if node.op_type == "Cast" and attrs["to"] in _REALS else node.op_type
        nodes.append(KernelNode(name, op, tuple(node.input), node.output[0], attrs, (name,)))
    return KernelGraph(nodes, constants, dict(opened.shapes), tuple(inputs), tuple(outputs))


def _real(values: Array) -> Array:
    """Return half-precision weights in single precision, and other arrays unchanged."""
    return values.astype(np.float32) if values.dtype == np.float16 else values


#: Operators that return their input at inference.
IDENTITIES = ("Identity", "Dropout")


def simplify(graph: KernelGraph) -> None:
    """Run every pass, in the order in which each prepares the next (paper 000: PAD merged, identities removed)."""
    for step in (fold_constants, remove_identities, fold_batch_norms, merge_pads, recognise_shuffles):
        step(graph)


def fold_constants(graph: KernelGraph) -> None:
    """Compute once all nodes that depend on constants alone, by ONNX's definition."""
    remaining = []
    for node in graph.nodes:
        if node.inputs and all(not name or name in graph.constants for name in node.inputs):
            graph.constants[node.output] = _evaluate(graph, node)
            graph.shapes[node.output] = graph.constants[node.output].shape
            graph.removed[node.name] = "computed once, because it depends on constants alone"
        else:
            remaining.append(node)
    graph.nodes = remaining


def _evaluate(graph: KernelGraph, node: KernelNode) -> Array:
    from onnx import TensorProto, helper
    from onnx.reference import ReferenceEvaluator

    onnx_node = helper.make_node(node.op, list(node.inputs), [node.output], **node.attrs)
    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(graph.constants[name].dtype), None)
        for name in node.inputs
        if name
    ]
    output = helper.make_tensor_value_info(node.output, TensorProto.UNDEFINED, None)
    proto = helper.make_graph([onnx_node], "constant", values, [output])
    model = helper.make_model(proto, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    try:
        result: Any = ReferenceEvaluator(model).run(None, {name: graph.constants[name] for name in node.inputs if name})
    except (ValueError, TypeError, RuntimeError, NotImplementedError) as error:
        raise UnableError(f"node `{node.name}` ({node.op}) of constants cannot be evaluated: {error}") from error
    return np.asarray(result[0])


def remove_identities(graph: KernelGraph) -> None:
    """Let readers of an identity read its input; an identity that writes an output stays."""
    renamed: dict[str, str] = {}
    nodes, graph.nodes = graph.nodes, []
    for node in nodes:
        inputs = tuple(renamed.get(name, name) for name in node.inputs)
        if node.op in IDENTITIES and node.output not in graph.outputs:
            renamed[node.output] = inputs[0]
            graph.removed[node.name] = "removed: at inference it returns its input"
        else:
            graph.nodes.append(replace(node, inputs=inputs))


def fold_batch_norms(graph: KernelGraph) -> None:
    """Fold batch-norms into the weights before them; a batch-norm elsewhere becomes `ScaleShift`.

    y = γ·(x − μ)/√(σ² + ε) + β is x·a + b with a = γ/√(σ² + ε) and b = β − a·μ.
    """
    for node in list(graph.nodes):
        if node.op != "BatchNormalization" or any(name not in graph.constants for name in node.inputs[1:]):
            continue
        gamma, beta, mean, variance = (graph.constants[name].astype(np.float64) for name in node.inputs[1:])
        factor = gamma / np.sqrt(variance + node.attrs.get("epsilon", 1e-5))
        offset = beta - factor * mean
        before = graph.writers().get(node.inputs[0])
        if before is not None and before.op == "Conv" and graph.only_reader(before.output) is node and before.inputs[1] in graph.constants:
            weight = graph.constants[before.inputs[1]].astype(np.float64)
            bias = graph.constants[before.inputs[2]].astype(np.float64) if len(before.inputs) > 2 and before.inputs[2] else 0.0
            folded = _constant(graph, f"{node.name}.folded_weight", weight * factor.reshape(-1, *[1] * (weight.ndim - 1)))
            shifted = _constant(graph, f"{node.name}.folded_bias", bias * factor + offset)
            merge(graph, before, node, inputs=(before.inputs[0], folded, shifted))
        else:
            names = _constant(graph, f"{node.name}.scale", factor), _constant(graph, f"{node.name}.shift", offset)
            _replace_node(graph, node, replace(node, op="ScaleShift", inputs=(node.inputs[0], *names)))


def merge_pads(graph: KernelGraph) -> None:
    """Merge zero pads of height and width into the convolution or average that alone reads them."""
    for node in list(graph.nodes):
        if node.op != "Pad" or node.attrs.get("mode", b"constant") != b"constant" or (len(node.inputs) > 3 and node.inputs[3]):
            continue
        value = graph.constants.get(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else np.zeros(1)
        pads = graph.constants.get(node.inputs[1])
        after = graph.only_reader(node.output)
        if (
            after is None
            or value is None
            or pads is None
            or len(pads) != 8
            or np.any(value)
            or any(pads[i] for i in (0, 1, 4, 5))
            or pads.min() < 0
        ):
            continue
        inner = after.attrs.get("pads", (0, 0, 0, 0))
        plain_average = (
            after.op == "AveragePool" and not after.attrs.get("ceil_mode") and (after.attrs.get("count_include_pad") or not any(inner))
        )
        if after.op == "Conv" and after.inputs[0] == node.output:
            attributes: dict[str, object] = {}
        elif plain_average:
            attributes = {"count_include_pad": 1}
        else:
            continue
        total = tuple(int(a) + int(pads[i]) for a, i in zip(inner, (2, 3, 6, 7), strict=True))
        merged = replace(
            after.with_attrs(pads=total, **attributes), inputs=(node.inputs[0], *after.inputs[1:]), merged=(*after.merged, *node.merged)
        )
        _replace_node(graph, after, merged)
        graph.nodes.remove(node)


def recognise_shuffles(graph: KernelGraph) -> None:
    """Replace reshape to groups, transpose and reshape back with one `ChannelShuffle`."""
    for node in list(graph.nodes):
        if node.op != "Transpose" or node not in graph.nodes:
            continue
        before, after = graph.writers().get(node.inputs[0]), graph.only_reader(node.output)
        if (
            before is None
            or after is None
            or before.op != "Reshape"
            or after.op != "Reshape"
            or graph.only_reader(before.output) is not node
        ):
            continue
        shape, groups = graph.shapes[before.inputs[0]], graph.shapes[before.output]
        swapped = tuple(node.attrs.get("perm", ())) == (0, 2, 1, 3, 4)
        if swapped and len(shape) == 4 and graph.shapes[after.output] == shape and groups[0] == shape[0] and groups[3:] == shape[2:]:
            shuffle = KernelNode(
                node.name,
                "ChannelShuffle",
                (before.inputs[0],),
                after.output,
                {"groups": groups[1]},
                before.merged + node.merged + after.merged,
            )
            graph.nodes[graph.nodes.index(after)] = shuffle
            graph.nodes.remove(before)
            graph.nodes.remove(node)


def merge(graph: KernelGraph, into: KernelNode, node: KernelNode, *, inputs: tuple[str, ...], **attrs: object) -> KernelNode:
    """Merge `node` into `into`, which writes its input; the merged node takes the position of `node`.

    Args:
        node: The later node; its output becomes the merged node's output.
        attrs: Additional attributes of the merged node.
    """
    merged = replace(into.with_attrs(**attrs), inputs=inputs, output=node.output, merged=into.merged + node.merged)
    graph.nodes[graph.nodes.index(node)] = merged
    graph.nodes.remove(into)
    return merged


def _replace_node(graph: KernelGraph, old: KernelNode, new: KernelNode) -> None:
    graph.nodes[graph.nodes.index(old)] = new


def _constant(graph: KernelGraph, name: str, value: Array) -> str:
    graph.constants[name] = np.ascontiguousarray(value, np.float32)
    graph.shapes[name] = value.shape
    return name


@dataclass(frozen=True)
class FusedActivation:
    """An element-wise function at the end of a kernel."""

    name: str = "none"  # `act_<name>` in kernels/common.h.
    a: float = 0.0  # Its first parameter.
    b: float = 0.0  # Its second parameter.

    @property
    def macro(self) -> str:
        """Name in the kernels; the driver would replace a bare `tanh` with its own macro."""
        return f"act_{self.name}"


NONE = FusedActivation()

#: ONNX operators that compute one activation: the activation's name, and the attributes for its parameters, with their defaults.
ACTIVATIONS: Mapping[str, tuple[str, Mapping[str, float]]] = {
    "Elu": ("elu", {"alpha": 1.0}),
    "HardSigmoid": ("hard_sigmoid", {"alpha": 0.2, "beta": 0.5}),
    "HardSwish": ("hard_swish", {}),
    "LeakyRelu": ("leaky_relu", {"alpha": 0.01}),
    "Mish": ("mish", {}),
    "Relu": ("relu", {}),
    "Sigmoid": ("sigmoid", {}),
    "Tanh": ("tanh", {}),
}

#: Kernels that end with an activation.
ACTIVATED = ("Conv", "Gemm", "Unary", "Binary", "ScaleShift")
#: Operators whose kernels can add another tensor to the result.
RESIDUAL = ("Conv",)


def fuse(graph: KernelGraph, residual: bool = True, activations: bool = True) -> None:
    """Merge activations and additions into convolutions; the remaining ones become `Unary` and `Binary` nodes."""
    for node in list(graph.nodes):
        activation = activation_of(graph, node)
        if activation is not None and node.op != "Mul":
            _replace_node(
                graph, node, KernelNode(node.name, "Unary", (node.inputs[0],), node.output, {"activation": activation}, node.merged)
            )
    _merge_gated_products(graph)
    for node in list(graph.nodes):
        if node.op in ("Add", "Mul", "PRelu"):
            _replace_node(graph, node, replace(node, op="Binary", attrs={"function": node.op.lower()}))
        elif node.op == "Sum":
            _chain_sum(graph, node)
    changed = True
    while changed:
        changed = any(
            (activations and _merge_activation(graph, node)) or (residual and _merge_residual(graph, node)) for node in list(graph.nodes)
        )


def activation_of(graph: KernelGraph, node: KernelNode) -> FusedActivation | None:
    """Return the activation that an ONNX node computes, or None."""
    attrs = node.attrs
    if node.op == "Clip":
        bounds = []
        for i, default in ((1, -np.inf), (2, np.inf)):
            name = node.inputs[i] if len(node.inputs) > i else ""
            if name and name not in graph.constants:
                return None
            bounds.append(float(graph.constants[name].item()) if name else default)
        largest = float(np.finfo(np.float32).max)
        return FusedActivation("clip", max(bounds[0], -largest), min(bounds[1], largest))
    if node.op == "Gelu":
        return FusedActivation("gelu_tanh" if attrs.get("approximate", b"none") == b"tanh" else "gelu")
    if node.op not in ACTIVATIONS:
        return None
    name, defaults = ACTIVATIONS[node.op]
    return FusedActivation(name, *(attrs.get(key, default) for key, default in defaults.items()))


def _merge_gated_products(graph: KernelGraph) -> None:
    """Merge x·sigmoid(x) into the activation SiLU, and x·hard_sigmoid(x) into hard-swish."""
    for node in list(graph.nodes):
        if node.op != "Mul" or node not in graph.nodes:
            continue
        writers = graph.writers()
        for gate, x in (node.inputs, node.inputs[::-1]):
            unary = writers.get(gate)
            if unary is None or unary.op != "Unary" or unary.inputs[0] != x or graph.only_reader(gate) is not node:
                continue
            activation = unary.attrs["activation"]
            standard = activation.name == "hard_sigmoid" and abs(activation.a - 1 / 6) < 1e-6 and activation.b == 0.5
            name = "silu" if activation.name == "sigmoid" else "hard_swish" if standard else None
            if name:
                merge(graph, unary, node, inputs=(x,), activation=FusedActivation(name))
                break


def _chain_sum(graph: KernelGraph, node: KernelNode) -> None:
    """Replace a sum of n tensors with n − 1 additions."""
    index = graph.nodes.index(node)
    total, chain = node.inputs[0], []
    for i, operand in enumerate(node.inputs[1:], start=2):
        output = node.output if i == len(node.inputs) else f"{node.output}.{i}"
        graph.shapes[output] = graph.shapes[node.output]
        chain.append(KernelNode(node.name, "Binary", (total, operand), output, {"function": "add"}, node.merged))
        total = output
    graph.nodes[index : index + 1] = chain or [replace(node, op="Identity")]


def _merge_activation(graph: KernelGraph, node: KernelNode) -> bool:
    if node.op not in ACTIVATED or node.attrs.get("activation", NONE) != NONE:
        return False
    after = graph.only_reader(node.output)
    if after is None or after.op != "Unary" or (node.op == "Conv" and node.attrs.get("residual_last")):
        return False
    merge(graph, node, after, inputs=node.inputs, activation=after.attrs["activation"])
    return True


def _merge_residual(graph: KernelGraph, node: KernelNode) -> bool:
    """Merge `add(conv, z)` into the convolution if z has the result's shape and is not constant; return whether it was merged."""
    if node.op not in RESIDUAL or "residual" in node.attrs:
        return False
    after = graph.only_reader(node.output)
    if after is None or after.op != "Binary" or after.attrs["function"] != "add" or after.attrs.get("activation", NONE) != NONE:
        return False
    residual_input = after.inputs[1] if after.inputs[0] == node.output else after.inputs[0]
    if residual_input in graph.constants or graph.shapes[residual_input] != graph.shapes[after.output]:
        return False
    # The merged node takes the position of the addition, so `residual_input` is written before it.
    inputs = (node.inputs[0], node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else "", residual_input)
    last = node.attrs.get("activation", NONE) != NONE
    merge(graph, node, after, inputs=inputs, residual=True, residual_last=last)
    return True
