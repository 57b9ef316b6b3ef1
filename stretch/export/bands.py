"""Bands of rows in int8: quantised as the whole segment is, so that together they are its result to the last bit.

The ranges of a band are not those of the image. So the whole segment is put
together again from a band's file, which has all of its operators and weights,
quantised on whole images, and cut again: every band has the scales, the
rounded weights and the integer operators of the whole.
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
    """The float segment that a band is cut from."""
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
        own = {entry.key: entry.value for node in part.nodes for entry in node.metadata_props}
        padding = {"padding": _numbers(own[WHOLE_PADDING], where)} if WHOLE_PADDING in own else {}
        tags = {tag: own[prop] for prop, tag in NODE_TAGS.items() if prop in own}
        ops.append(Op(op.name, op.kind, inputs, {**op.attrs, **padding}, tags=tags))
    properties = {entry.key: entry.value for entry in band.metadata_props}
    return to_onnx(OpGraph.build(band.graph.name, ops, names[file.graph.output]), weights_of(file), properties)


def band_of(whole: onnx.ModelProto, band: onnx.ModelProto) -> onnx.ModelProto:
    """The band of a quantised segment."""
    made = onnx.ModelProto()
    made.CopyFrom(whole)
    _Cutter(made, band).cut()
    return made


def _numbers(text: str, where: Path) -> tuple[int, ...]:
    try:
        return msgspec.json.decode(text, type=tuple[int, int, int, int])
    except msgspec.MsgspecError as error:
        raise StretchError(
            f"{where} states no padding in `{WHOLE_PADDING}`: {error}", "write the bundle again with `stretch branch`"
        ) from error


class _Cutter:
    """Makes a quantised segment one of its bands."""

    def __init__(self, made: onnx.ModelProto, band: onnx.ModelProto) -> None:
        self._made, self._band = made, band
        self._there = {node.name for node in made.graph.node}
        self._maker = {node.output[0]: node for node in band.graph.node}
        self._constants = {tensor.name: tensor for tensor in band.graph.initializer}
        self._done: dict[tuple[str, int, int], str] = {}
        self._nodes: list[onnx.NodeProto] = []

    def cut(self) -> None:
        """Cut nodes, then ends and constants."""
        graph = self._made.graph
        own = {node.name: node for node in self._band.graph.node}
        makers = {node.output[0]: node for node in graph.node}
        for node in graph.node:
            like = own.get(node.name)
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
            if tensor.name in sizes:  # such as the shape that a tensor is given
                tensor.CopyFrom(sizes[tensor.name])
        for mine, theirs in ((graph.input, self._band.graph.input), (graph.output, self._band.graph.output)):
            mine[0].CopyFrom(theirs[0])
        del graph.value_info[:]

    def _adopt(self, node: onnx.NodeProto, like: onnx.NodeProto) -> None:
        """Give a node the band's attributes, which differ from the whole's in padding alone."""
        del node.attribute[:]
        node.attribute.extend(like.attribute)
        told, mine = stated(like), stated(node)
        if told is not None and mine is not None:
            state(node, mine[0], {**mine[1], **{key: value for key, value in told[1].items() if key == "padding"}})

    def _rows(self, name: str) -> tuple[int, int] | None:
        """Rows that are cut out of what the whole has in the place of one of the band's tensors; None for all."""
        rows: tuple[int, int] | None = None
        while (node := self._maker.get(name)) is not None:
            told = stated(node)
            if told is not None and told[0] == _CUT:
                start, stop = (int(numpy_helper.to_array(self._constants[each]).item()) for each in node.input[1:3])
                rows = (start, stop) if rows is None else (start + rows[0], start + rows[1])
            elif node.name in self._there:
                break
            # else it is part of another node by now, which leaves rows where they are
            name = node.input[0]
        return rows

    def _insert(self, name: str, rows: tuple[int, int], maker: onnx.NodeProto | None) -> str:
        """Cut rows out of a tensor before the next node, in its own scale; gives the name of what is left."""
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
            self._made.graph.initializer.append(numpy_helper.from_array(np.array([value], np.int64), bounds[-1]))
        node = helper.make_node("Slice", [name, *bounds], [real], name=result)
        state(node, _CUT, {"start": rows[0], "stop": rows[1]})
        belonging = [entry for entry in self._made.graph.node[0].metadata_props if entry.key in ("stretch.processor", "stretch.subgraph")]
        made = [node]
        if rounded:
            assert maker is not None
            made.append(helper.make_node("QuantizeLinear", [real, *maker.input[1:3]], [f"{result}.rounded"], name=f"{result}.quantize"))
            made.append(
                helper.make_node("DequantizeLinear", [f"{result}.rounded", *maker.input[1:3]], [result], name=f"{result}.dequantize")
            )
        for each in made:
            each.metadata_props.extend(belonging)
        self._nodes += made
        return result

    def _cut_output(self, makers: Mapping[str, Any]) -> None:
        """The band's output, cut out of the whole's."""
        graph = self._made.graph
        name = graph.output[0].name
        wanted = self._band.graph.output[0].name
        rows = self._rows(wanted)
        if rows is None:
            return
        last = makers[name]
        last.output[0] = f"{name}.whole"
        for node in self._nodes:
            node.input[:] = [f"{name}.whole" if each == name else each for each in node.input]
        self._sliced(f"{name}.whole", rows, last, wanted)
