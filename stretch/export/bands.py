"""Bands of rows in int8: quantised like the whole segment, so that together they compute its result bit for bit.

A band's tensors have other ranges than the whole image's. So the whole segment is
rebuilt from a band's file, which has all of its operators and weights,
quantised on whole images, and cut again: every band has the scales,
quantised weights and integer operators of the whole.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from predictors.errors import StretchError
from predictors.graph import Op, OpGraph
from predictors.shapes import Shape
from scheduler.formats.onnx import OnnxFile, state, stated
from stretch.export.onnx import NODE_TAGS, WHOLE_PADDING, to_onnx, weights_of

_CUT = "slice_rows"


def whole_of(band: onnx.ModelProto, shape: Shape, where: Path) -> onnx.ModelProto:
    """The float model of the segment that a band is cut from."""
    file = OnnxFile(where, band)
    source = file.graph.input.name
    ops, names = [Op(source, "input", attrs={"shape": shape})], {source: source}
    for part in file.operators:
        op = part.op
        inputs = tuple(names[name] for name in op.inputs)
        if op.kind == _CUT:
            names[op.name] = inputs[0]
            continue
        names[op.name] = op.name
        node_properties = {entry.key: entry.value for node in part.nodes for entry in node.metadata_props}
        padding = {"padding": _numbers(node_properties[WHOLE_PADDING], where)} if WHOLE_PADDING in node_properties else {}
        tags = {tag: node_properties[prop] for prop, tag in NODE_TAGS.items() if prop in node_properties}
        ops.append(Op(op.name, op.kind, inputs, {**op.attrs, **padding}, tags=tags))
    properties = {entry.key: entry.value for entry in band.metadata_props}
    return to_onnx(OpGraph.build(band.graph.name, ops, names[file.graph.output]), weights_of(file), properties)


def band_of(whole: onnx.ModelProto, band: onnx.ModelProto) -> onnx.ModelProto:
    """Cut a band from a quantised segment."""
    band_model = onnx.ModelProto()
    band_model.CopyFrom(whole)
    _Cutter(band_model, band).cut()
    return band_model


def _numbers(text: str, where: Path) -> tuple[int, ...]:
    try:
        return msgspec.json.decode(text, type=tuple[int, int, int, int])
    except msgspec.MsgspecError as error:
        raise StretchError(
            f"{where} states no padding in `{WHOLE_PADDING}`: {error}", "write the bundle again with `stretch branch`"
        ) from error


class _Cutter:
    """Reduces a quantised segment to one of its bands."""

    def __init__(self, model: onnx.ModelProto, band: onnx.ModelProto) -> None:
        self._model, self._band = model, band
        self._there = {node.name for node in model.graph.node}
        self._maker = {node.output[0]: node for node in band.graph.node}
        self._constants = {tensor.name: tensor for tensor in band.graph.initializer}
        self._done: dict[tuple[str, int, int], str] = {}
        self._nodes: list[onnx.NodeProto] = []

    def cut(self) -> None:
        """Cut nodes, then inputs, outputs and constants."""
        graph = self._model.graph
        band_nodes = {node.name: node for node in self._band.graph.node}
        makers = {node.output[0]: node for node in graph.node}
        for node in graph.node:
            like = band_nodes.get(node.name)
            if like is not None and not node.op_type.endswith("QuantizeLinear"):
                if node.op_type == like.op_type:
                    self._adopt(node, like)
                for at, name in enumerate(like.input):
                    rows = self._rows(name)
                    if rows is not None:
                        node.input[at] = self._insert(node.input[at], rows, makers.get(node.input[at]))
            self._nodes.append(node)
        self._cut_output(makers)
        nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in self._nodes]
        del graph.node[:]
        graph.node.extend(nodes)
        sizes = {name: tensor for name, tensor in self._constants.items() if tensor.data_type == TensorProto.INT64}
        for tensor in graph.initializer:
            if tensor.name in sizes:  # such as the shape of a Reshape
                tensor.CopyFrom(sizes[tensor.name])
        for mine, theirs in ((graph.input, self._band.graph.input), (graph.output, self._band.graph.output)):
            mine[0].CopyFrom(theirs[0])
        del graph.value_info[:]

    def _adopt(self, node: onnx.NodeProto, like: onnx.NodeProto) -> None:
        """Copy the band's attributes to a node; they differ from the whole's in padding alone."""
        del node.attribute[:]
        node.attribute.extend(like.attribute)
        stated_like, mine = stated(like), stated(node)
        if stated_like is not None and mine is not None:
            state(node, mine[0], {**mine[1], **{key: value for key, value in stated_like[1].items() if key == "padding"}})

    def _rows(self, name: str) -> tuple[int, int] | None:
        """Rows that a band's tensor has of the whole's; None for all."""
        rows: tuple[int, int] | None = None
        while (node := self._maker.get(name)) is not None:
            statement = stated(node)
            if statement is not None and statement[0] == _CUT:
                start, stop = (int(numpy_helper.to_array(self._constants[bound]).item()) for bound in node.input[1:3])
                rows = (start, stop) if rows is None else (start + rows[0], start + rows[1])
            elif node.name in self._there:
                break
            # otherwise it was folded into another node, which keeps all rows
            name = node.input[0]
        return rows

    def _insert(self, name: str, rows: tuple[int, int], maker: onnx.NodeProto | None) -> str:
        """Insert a slice of rows, in the scale of its input, before the next node; returns the name of its output."""
        key = (name, *rows)
        if key not in self._done:
            self._done[key] = self._sliced(name, rows, maker, f"{name}.rows_{rows[0]}_{rows[1]}")
        return self._done[key]

    def _sliced(self, name: str, rows: tuple[int, int], maker: onnx.NodeProto | None, result: str) -> str:
        rounded = maker is not None and maker.op_type == "DequantizeLinear"
        real = f"{result}.real" if rounded else result
        bounds = []
        for what, value in (("start", rows[0]), ("stop", rows[1]), ("axis", 2)):
            bounds.append(f"{result}.{what}")
            self._model.graph.initializer.append(numpy_helper.from_array(np.array([value], np.int64), bounds[-1]))
        node = helper.make_node("Slice", [name, *bounds], [real], name=result)
        state(node, _CUT, {"start": rows[0], "stop": rows[1]})
        belonging = [entry for entry in self._model.graph.node[0].metadata_props if entry.key in ("stretch.processor", "stretch.subgraph")]
        nodes = [node]
        if rounded:
            assert maker is not None
            nodes.append(helper.make_node("QuantizeLinear", [real, *maker.input[1:3]], [f"{result}.rounded"], name=f"{result}.quantize"))
            nodes.append(
                helper.make_node("DequantizeLinear", [f"{result}.rounded", *maker.input[1:3]], [result], name=f"{result}.dequantize")
            )
        for new_node in nodes:
            new_node.metadata_props.extend(belonging)
        self._nodes += nodes
        return result

    def _cut_output(self, makers: Mapping[str, Any]) -> None:
        """Slice the band's output from the whole's."""
        graph = self._model.graph
        name = graph.output[0].name
        wanted = self._band.graph.output[0].name
        rows = self._rows(wanted)
        if rows is None:
            return
        last = makers[name]
        last.output[0] = f"{name}.whole"
        for node in self._nodes:
            node.input[:] = [f"{name}.whole" if input_name == name else input_name for input_name in node.input]
        self._sliced(f"{name}.whole", rows, last, wanted)
