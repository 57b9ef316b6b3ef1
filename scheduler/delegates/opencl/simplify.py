"""Passes that make a graph smaller before its kernels are chosen: constants, identities, batch-norms, pads."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from predictors.errors import StretchError
from scheduler.delegates.base import Array
from scheduler.delegates.opencl.graph import KernelGraph, KernelNode

#: Return their input at inference.
IDENTITIES = ("Identity", "Dropout")


def simplify(graph: KernelGraph) -> None:
    """Run every pass, in the order in which each serves the next (paper 000: PAD merged, identities removed)."""
    for step in (fold_constants, remove_identities, fold_batch_norms, merge_pads, recognise_shuffles):
        step(graph)


def fold_constants(graph: KernelGraph) -> None:
    """Compute what depends on constants alone, once, with ONNX's own definition."""
    kept = []
    for node in graph.nodes:
        if node.inputs and all(not name or name in graph.constants for name in node.inputs):
            graph.constants[node.output] = _evaluate(graph, node)
            graph.shapes[node.output] = graph.constants[node.output].shape
            graph.gone[node.name] = "computed once, for it depends on constants alone"
        else:
            kept.append(node)
    graph.nodes = kept


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
        raise StretchError(f"node `{node.name}` ({node.op}) of constants cannot be evaluated: {error}") from error
    return np.asarray(result[0])


def remove_identities(graph: KernelGraph) -> None:
    """Let readers of an identity read its input; one that is an output stays."""
    for node in list(graph.nodes):
        if node.op in IDENTITIES and node.output not in graph.outputs:
            _replace_reads(graph, node.output, node.inputs[0])
            _remove(graph, node, "removed: at inference it returns its input")


def fold_batch_norms(graph: KernelGraph) -> None:
    """Batch-norms into the weights before them; a batch-norm elsewhere becomes `ScaleShift`.

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
            folded = _constant(graph, f"{node.name}.weight", weight * factor.reshape(-1, 1, 1, 1))
            shifted = _constant(graph, f"{node.name}.bias", bias * factor + offset)
            merge(graph, before, node, inputs=(before.inputs[0], folded, shifted))
        else:
            names = _constant(graph, f"{node.name}.scale", factor), _constant(graph, f"{node.name}.shift", offset)
            _swap(graph, node, replace(node, op="ScaleShift", inputs=(node.inputs[0], *names)))


def merge_pads(graph: KernelGraph) -> None:
    """Zero pads of height and width into the convolution or average that alone reads them."""
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
            more: dict[str, object] = {}
        elif plain_average:
            more = {"count_include_pad": 1}
        else:
            continue
        total = tuple(int(a) + int(pads[i]) for a, i in zip(inner, (2, 3, 6, 7), strict=True))
        merged = replace(
            after.with_attrs(pads=total, **more), inputs=(node.inputs[0], *after.inputs[1:]), merged=(*after.merged, *node.merged)
        )
        _swap(graph, after, merged)
        graph.nodes.remove(node)


def recognise_shuffles(graph: KernelGraph) -> None:
    """Reshape to groups, exchange of the two, reshape back: one `ChannelShuffle`; and layer-norms over channels."""
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
    """Put what `node` does into `into`, the node that writes what it reads; the merged node stands where `node` stood.

    Args:
        node: The later node; its output becomes that of the merged node.
        attrs: Attributes it has beside those of `into`.
    """
    merged = replace(into.with_attrs(**attrs), inputs=inputs, output=node.output, merged=into.merged + node.merged)
    graph.nodes[graph.nodes.index(node)] = merged
    graph.nodes.remove(into)
    return merged


def _swap(graph: KernelGraph, old: KernelNode, new: KernelNode) -> None:
    graph.nodes[graph.nodes.index(old)] = new


def _remove(graph: KernelGraph, node: KernelNode, reason: str) -> None:
    graph.nodes.remove(node)
    graph.gone[node.name] = reason


def _replace_reads(graph: KernelGraph, old: str, new: str) -> None:
    rename: Callable[[str], str] = lambda name: new if name == old else name  # noqa: E731
    graph.nodes = [replace(n, inputs=tuple(map(rename, n.inputs))) if old in n.inputs else n for n in graph.nodes]


def _constant(graph: KernelGraph, name: str, value: Array) -> str:
    graph.constants[name] = np.ascontiguousarray(value, np.float32)
    graph.shapes[name] = value.shape
    return name
