"""TFLite files: rounded tensors, padding, weights and what the writer states."""

import numpy as np
import pytest

from predictors.errors import StretchError
from predictors.graph import Op, OpGraph
from stretch.formats import tflite as module
from stretch.formats.tflite import Piece, SubgraphBuilder, Writer
from tests.scheduler.delegates import graphs
from tests.stretch.export.tflite.rounded import rounded_source, run, snr_db

pytest.importorskip("ai_edge_litert")
pytest.importorskip("torch")


def builder(**scales):
    return SubgraphBuilder(Piece(Writer("m"), "s"), scales)


def codes(b):
    return [list(b.piece.writer._opcodes)[op["opcode_index"]][0] for op in b.piece.operators]


def test_half_weights_that_would_overflow_stay_as_they_are():
    b = builder()
    b.half = True
    b.weight("w", np.array([1e6, 1.0], np.float32))
    assert codes(b) == []
    b.weight("w", np.array([1.0, 2.0], np.float32))
    assert codes(b) == ["DEQUANTIZE"]


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
    from scheduler.formats.tflite import TFLITE

    return TFLITE.decode(graphs.tflite_bytes(source.graph, source))["subgraphs"][0]["tensors"]


def test_weights_of_more_than_a_file_holds_are_refused(monkeypatch):
    monkeypatch.setattr(module, "MAX_BYTES", 100)
    writer = Writer("m")
    writer.buffer(np.zeros(20, np.float32))
    with pytest.raises(StretchError, match="more than 2 GB of weights"):
        writer.buffer(np.zeros(6, np.float32))
