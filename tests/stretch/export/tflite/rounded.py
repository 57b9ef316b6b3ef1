"""Operator graphs in int8, with scales from the ranges of their tensors."""

import numpy as np

from scheduler.delegates.reference import ReferenceDelegate
from scheduler.formats.int8_edges import Quant
from scheduler.formats.tflite import OPERATORS, TFLITE, TYPES
from stretch.export.onnx import save_onnx, to_onnx
from stretch.export.tflite import read_source
from tests.scheduler.delegates import graphs


def quant_of(values):
    """The asymmetric int8 scale of a range that holds 0."""
    low, high = min(float(values.min()), 0.0), max(float(values.max()), 0.0)
    scale = (high - low) / 255 or 1.0
    return Quant(scale, int(np.clip(np.rint(-128 - low / scale), -128, 127)))


def rounded_source(graph, weights, x, folder):
    """The source of the graph as an int8 subgraph, and the float values of every tensor."""
    save_onnx(to_onnx(graph, weights), folder / "op.onnx")
    source = read_source(folder / "op.onnx")
    values = ReferenceDelegate().compile(folder / "op.onnx").evaluate([x])
    source.scales.update({op.name: quant_of(values[op.name]) for op in source.graph.ops})
    return source, values


def snr_db(expected, got):
    """Signal-to-noise ratio in dB: power of the float values over the power of the difference."""
    noise = float(((expected - got) ** 2).sum())
    return 200.0 if noise == 0 else 10 * np.log10(float((expected**2).sum()) / noise)


def run(source, folder, x):
    from scheduler.delegates.litert import LiteRtDelegate

    (folder / "op.tflite").write_bytes(graphs.tflite_bytes(source.graph, source))
    return graphs.run(LiteRtDelegate(), folder / "op.tflite", source.graph, x)


def codes(source):
    """Names of a source's TFLite operators in order, with the type of each output."""
    model = TFLITE.decode(graphs.tflite_bytes(source.graph, source))
    names = {kind.number: name for name, kind in OPERATORS.items()}
    types = {number: name for name, number in TYPES.items()}
    (graph,) = model["subgraphs"]
    return [
        (names[model["operator_codes"][op.get("opcode_index", 0)]["builtin_code"]], types[graph["tensors"][op["outputs"][0]]["type"]])
        for op in graph["operators"]
    ]
