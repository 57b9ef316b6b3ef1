"""Activations and residual additions put into the kernel that computes what they read (paper 000, operator fusion)."""

from dataclasses import dataclass, replace

import numpy as np

from scheduler.delegates.opencl.graph import KernelGraph, KernelNode
from scheduler.delegates.opencl.simplify import merge


@dataclass(frozen=True)
class FusedActivation:
    """An element-wise function at the end of a kernel."""

    name: str = "none"  # `act_<name>` in kernels/common.h.
    a: float = 0.0  # Its first parameter.
    b: float = 0.0  # Its second parameter.

    @property
    def macro(self) -> str:
        """The kernels' name for it; a bare `tanh` would be replaced by a driver's macro."""
        return f"act_{self.name}"


NONE = FusedActivation()

#: Kernels that end with an activation.
ACTIVATED = ("Conv", "Gemm", "Unary", "Binary", "ScaleShift")
#: Kernels to whose result another tensor can be added.
RESIDUAL = ("Conv",)


def fuse(graph: KernelGraph, residual: bool = True, activations: bool = True) -> None:
    """Merge activations and additions into convolutions; what is left becomes `Unary` and `Binary` nodes."""
    for node in list(graph.nodes):
        activation = activation_of(graph, node)
        if activation is not None and node.op != "Mul":
            _swap(graph, node, KernelNode(node.name, "Unary", (node.inputs[0],), node.output, {"activation": activation}, node.merged))
    _products_with_gates(graph)
    for node in list(graph.nodes):
        if node.op in ("Add", "Mul", "PRelu"):
            _swap(graph, node, replace(node, op="Binary", attrs={"function": node.op.lower()}))
        elif node.op == "Sum":
            _chain_sum(graph, node)
    changed = True
    while changed:
        changed = any(
            (activations and _merge_activation(graph, node)) or (residual and _merge_residual(graph, node)) for node in list(graph.nodes)
        )


def activation_of(graph: KernelGraph, node: KernelNode) -> FusedActivation | None:
    """What an ONNX node does to each element, or None if it is no activation."""
    attrs = node.attrs
    match node.op:
        case "Relu":
            return FusedActivation("relu")
        case "Clip":
            bounds = []
            for i, default in ((1, -np.inf), (2, np.inf)):
                name = node.inputs[i] if len(node.inputs) > i else ""
                if name and name not in graph.constants:
                    return None
                bounds.append(float(graph.constants[name].item()) if name else default)
            largest = float(np.finfo(np.float32).max)
            return FusedActivation("clip", max(bounds[0], -largest), min(bounds[1], largest))
        case "HardSigmoid":
            return FusedActivation("hard_sigmoid", attrs.get("alpha", 0.2), attrs.get("beta", 0.5))
        case "Gelu":
            return FusedActivation("gelu_tanh" if attrs.get("approximate", b"none") == b"tanh" else "gelu")
        case "Elu":
            return FusedActivation("elu", attrs.get("alpha", 1.0))
        case "LeakyRelu":
            return FusedActivation("leaky_relu", attrs.get("alpha", 0.01))
        case "HardSwish":
            return FusedActivation("hard_swish")
        case "Sigmoid" | "Tanh" | "Mish":
            return FusedActivation(node.op.lower())
    return None


def _products_with_gates(graph: KernelGraph) -> None:
    """x·sigmoid(x) is SiLU, x·hard_sigmoid(x) hard-swish: one activation each."""
    for node in list(graph.nodes):
        if node.op != "Mul" or node not in graph.nodes:
            continue
        writers = graph.writers()
        for gate, x in (node.inputs, node.inputs[::-1]):
            unary = writers.get(gate)
            if unary is None or unary.op != "Unary" or unary.inputs[0] != x or graph.only_reader(gate) is not node:
                continue
            known = unary.attrs["activation"]
            standard = known.name == "hard_sigmoid" and abs(known.a - 1 / 6) < 1e-6 and known.b == 0.5
            name = "silu" if known.name == "sigmoid" else "hard_swish" if standard else None
            if name:
                merge(graph, unary, node, inputs=(x,), activation=FusedActivation(name))
                break


def _chain_sum(graph: KernelGraph, node: KernelNode) -> None:
    """A sum of n tensors as n − 1 additions."""
    at = graph.nodes.index(node)
    total, chain = node.inputs[0], []
    for i, other in enumerate(node.inputs[1:], start=2):
        output = node.output if i == len(node.inputs) else f"{node.output}.{i}"
        graph.shapes[output] = graph.shapes[node.output]
        chain.append(KernelNode(node.name, "Binary", (total, other), output, {"function": "add"}, node.merged))
        total = output
    graph.nodes[at : at + 1] = chain or [replace(node, op="Identity")]


def _merge_activation(graph: KernelGraph, node: KernelNode) -> bool:
    if node.op not in ACTIVATED or node.attrs.get("activation", NONE) != NONE:
        return False
    after = graph.only_reader(node.output)
    if after is None or after.op != "Unary" or (node.op == "Conv" and node.attrs.get("residual_last")):
        return False
    merge(graph, node, after, inputs=node.inputs, activation=after.attrs["activation"])
    return True


def _merge_residual(graph: KernelGraph, node: KernelNode) -> bool:
    """`add(conv, z)` into the convolution, where z has the result's shape and exists before it."""
    if node.op not in RESIDUAL or "residual" in node.attrs:
        return False
    after = graph.only_reader(node.output)
    if after is None or after.op != "Binary" or after.attrs["function"] != "add" or after.attrs.get("activation", NONE) != NONE:
        return False
    other = after.inputs[1] if after.inputs[0] == node.output else after.inputs[0]
    if other in graph.constants or graph.shapes[other] != graph.shapes[after.output]:
        return False
    # The merged node stands where the addition stood, so `other` is written before it.
    inputs = (node.inputs[0], node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else "", other)
    last = node.attrs.get("activation", NONE) != NONE
    merge(graph, node, after, inputs=inputs, residual=True, residual_last=last)
    return True


def _swap(graph: KernelGraph, old: KernelNode, new: KernelNode) -> None:
    graph.nodes[graph.nodes.index(old)] = new
