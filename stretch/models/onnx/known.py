"""Tensors that are known before the network runs: what a file stores, and what it computes of that alone."""

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper
from torch import fx

from predictors.errors import StretchError
from scheduler.formats.onnx.shapes import RULES
from scheduler.formats.onnx.shapes.moving import SHORT
from scheduler.formats.onnx.shapes.node import TYPE_NAMES, KnownTensor, ShapeNode
from stretch.models.builder import shape_of
from stretch.models.onnx.site import OnnxSite, Rule

#: Elements that a stored tensor may grow to before the network runs.
MAX_KNOWN = 1 << 26

#: The oldest opset in which the evaluator knows scales; they meant the same before.
_SCALED = 21

#: Operators whose result is part of what they read, and may be empty: exporters cut the shapes of single numbers out of others.
_CUTTING = ("Slice",)


def computed(node: Any, reads: list[np.ndarray | None], attrs: Mapping[str, Any], opset: int) -> list[np.ndarray]:
    """The results of a node that reads nothing but known tensors.

    They are computed by the reference evaluator of the `onnx` package, once it is sure how large they are.

    Args:
        node: The `onnx.NodeProto`.
        reads: Its inputs; None for one that is left out.
    """
    from onnx.reference import ReferenceEvaluator

    _check(node, reads, attrs)
    names = ["" if x is None else f"x{i}" for i, x in enumerate(reads)]
    lone = onnx.NodeProto()
    lone.CopyFrom(node)
    del lone.input[:]
    lone.input.extend(names)
    graph = helper.make_graph(
        [lone], "known", [onnx.ValueInfoProto(name=n) for n in names if n], [onnx.ValueInfoProto(name=n) for n in lone.output]
    )
    spoken = max(opset, _SCALED) if node.op_type in ("QuantizeLinear", "DequantizeLinear") else opset
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", spoken)])
    try:
        run_result = ReferenceEvaluator(model).run(None, {name: x for name, x in zip(names, reads, strict=True) if name})
    # The evaluator raises whatever numpy does.
    except Exception as error:
        raise StretchError(f"it cannot be computed from what the file stores: {(str(error).splitlines() or ['?'])[0][:120]}") from error
    arrays = [np.asarray(item) for item in run_result]
    return [array.astype(np.float32) if array.dtype == np.float16 else array for array in arrays]


def by_rule(rule: Rule, site: OnnxSite) -> list[np.ndarray]:
    """The results of a node that reads nothing but known tensors, by the rule for one of the network.

    For operators whose shapes bundles do not know; sizes are those that a network may have.
    """
    read = site.inputs[0]
    first = site.builder.stored(read, "x0") if isinstance(read, np.ndarray) else read
    built = rule(replace(site, inputs=[first, *site.inputs[1:]]))
    if isinstance(built, np.ndarray):
        return [built]
    if not isinstance(built, fx.Node) or prod(shape_of(built)) > MAX_KNOWN:
        raise StretchError("it is not computed from what the file stores, or makes a stored tensor too large")
    with torch.no_grad():
        return [site.builder.finish(built, "Known")(torch.zeros(1)).numpy()]


def _check(node: Any, reads: list[np.ndarray | None], attrs: Mapping[str, Any]) -> None:
    if node.op_type in _CUTTING and node.domain in ("", "ai.onnx"):
        return
    rule = RULES.get(node.op_type)
    if rule is None or node.domain not in ("", "ai.onnx"):
        raise StretchError("it is not computed from what the file stores")
    seen = {key: tensor(value) if isinstance(value, np.ndarray) else value for key, value in attrs.items()}
    cost = rule(ShapeNode(tuple(None if x is None else tensor(x) for x in reads), seen, len(node.output)))
    if max(result.size for result in cost.results) > MAX_KNOWN or cost.work > 64 * MAX_KNOWN:
        raise StretchError("it makes a stored tensor too large")


def tensor(x: np.ndarray) -> KnownTensor:
    """What a rule of shapes knows of an array."""
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    if kind not in TYPE_NAMES:
        raise StretchError(f"it reads numbers of type {x.dtype}, which no network computes with")
    return KnownTensor(x.shape, kind, tuple(x.ravel().tolist()) if x.size <= SHORT else None)
