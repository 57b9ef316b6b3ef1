"""TFLite files: rounded tensors, padding, weights and what the writer states."""

import numpy as np
import pytest

from predictors.errors import StretchError
from predictors.graph import Op, OpGraph
from predictors.operators import kind_of
from scheduler.formats.tflite_schema import TFLITE
from stretch.formats.tflite import writer as module
from stretch.formats.tflite.builder import Builder, Value
from stretch.formats.tflite.padding import window
from stretch.formats.tflite.source import Source
from stretch.formats.tflite.weights import growth
from stretch.formats.tflite.writer import Piece, Quant, Writer
from tests.scheduler.delegates import graphs
from tests.stretch.export.tflite.rounded import rounded_source, run, snr_db

pytest.importorskip("ai_edge_litert")
pytest.importorskip("torch")


FINE, COARSE = Quant(0.25, 0), Quant(0.5, -128)


def builder(**scales):
    return Builder(Piece(Writer("m"), "s"), scales)


def codes(b):
    return [list(b.piece.writer._opcodes)[op["opcode_index"]][0] for op in b.piece.operators]


def test_real_tensor_is_rounded_once_for_all_its_readers():
    b = builder(x=FINE)
    x = b.input("x", (1, 2))
    assert b.integer(x) == b.integer(x)
    assert codes(b) == ["QUANTIZE"]


def test_reader_with_another_scale_gets_the_tensor_re_quantised():
    b = builder(x=FINE)
    x = b.input("x", (1, 2))
    index = b.integer(x, COARSE)
    assert codes(b) == ["QUANTIZE", "QUANTIZE"]  # to its own scale first: that is what the file was compared with
    assert b.piece.tensors[index]["quantization"] == {"scale": [0.5], "zero_point": [-128], "quantized_dimension": 0}


def test_half_weights_that_would_overflow_stay_as_they_are():
    b = builder()
    b.half = True
    b.weight("w", np.array([1e6, 1.0], np.float32))
    assert codes(b) == []
    b.weight("w", np.array([1.0, 2.0], np.float32))
    assert codes(b) == ["DEQUANTIZE"]


@pytest.mark.parametrize(
    ("size", "stride", "rule", "explicit"), [(8, 1, 0, False), (8, 2, 1, True), (7, 2, 0, False)], ids=["same", "symmetric", "odd"]
)
def test_symmetric_padding_needs_an_operator_only_where_same_is_another_rule(size, stride, rule, explicit):
    attrs = {"kernel": (3, 3), "stride": (stride, stride), "padding": (1, 1, 1, 1)}
    image = (1, 4, size, size)
    place = window(attrs, image, kind_of("max_pool").shape([image], attrs))
    assert (place.padding, place.explicit) == (rule, explicit)


CONV = {"kernel": (3, 3), "stride": (1, 1), "padding": (1,) * 4, "dilation": (1, 1), "bias": True}


def case(*ops, shape=(1, 6, 5, 4), seed=0):
    graph = OpGraph.build("case", [Op("x", "input", attrs={"shape": shape}), *ops], ops[-1].name)
    random = np.random.default_rng(seed)
    return graph, graphs.weights_of(graph, random), random.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_int8_weights_have_a_scale_for_each_output_channel(tmp_path, groups):
    graph, weights, x = case(Op("y", "conv", ("x",), CONV | {"groups": groups, "out_channels": 6}))
    # channels of very different size: one scale for all would round the small ones away
    weights["y"]["weight"] *= (10.0 ** -np.arange(6)).reshape(-1, 1, 1, 1)
    weights["y"]["bias"] *= 10.0 ** -np.arange(6)
    source, values = rounded_source(graph, weights, x, tmp_path)
    assert snr_db(values["y"], run(source, tmp_path, x)) > 30
    tensor = next(t for t in _tensors(source) if t["name"] == "y.weight")
    assert len(tensor["quantization"]["scale"]) == 6
    assert max(tensor["quantization"]["scale"]) > 1e4 * min(tensor["quantization"]["scale"])


def _tensors(source):
    from scheduler.formats.tflite_schema import TFLITE

    return TFLITE.decode(graphs.tflite_bytes(source.graph, source))["subgraphs"][0]["tensors"]


@pytest.mark.parametrize(("scale", "growing"), [(1e-9, True), (1.0, False)])
def test_result_that_is_nearly_nothing_would_grow(scale, growing):
    graph, weights, _ = case(Op("y", "conv", ("x",), CONV | {"groups": 1, "out_channels": 6}))
    found = growth(Source(graph, weights), graph.by_name["y"], Value("x", (1, 5, 4, 6), Quant(0.1, 0)), Quant(scale, 0))
    assert (found > 1) == growing


def small(dtype="float32"):
    """A file whose only subgraph doubles a tensor."""
    writer = Writer("a model")
    piece = Piece(writer, "step")
    quant = Quant(0.5, -3) if dtype == "int8" else None
    x = piece.tensor("x", (1, 2), dtype, quant)
    two = piece.constant(
        "two", np.full((1, 2), 2, np.float32) if quant is None else np.full((1, 2), 2, np.int8), () if quant is None else [1.0]
    )
    y = piece.tensor("y", (1, 2), dtype, quant)
    piece.op("MUL", [x, two], y, fused_activation_function=1)
    writer.add(piece, {"x": x}, {"y": y})
    return writer


def test_signature_is_called_like_its_subgraph_and_names_its_ends():
    model = TFLITE.decode(small().finish())
    (signature,) = model["signature_defs"]
    assert (signature["signature_key"], signature["inputs"], signature["outputs"]) == (
        "step",
        [{"name": "x", "tensor_index": 0}],
        [{"name": "y", "tensor_index": 2}],
    )
    assert model["description"] == "a model"


@pytest.mark.parametrize(("dtype", "version"), [("float32", 1), ("int8", 2)])
def test_version_of_an_operator_follows_the_type_of_its_tensors(dtype, version):
    (code,) = TFLITE.decode(small(dtype).finish())["operator_codes"]
    assert (code["builtin_code"], code["version"]) == (18, version)


def test_weights_of_more_than_a_file_holds_are_refused(monkeypatch):
    monkeypatch.setattr(module, "MAX_BYTES", 100)
    writer = Writer("m")
    writer.buffer(np.zeros(20, np.float32))
    with pytest.raises(StretchError, match="more than 2 GB of weights"):
        writer.buffer(np.zeros(6, np.float32))
