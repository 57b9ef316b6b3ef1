import numpy as np
import pytest

from predictors.graph import Op, OpGraph
from stretch.formats.tflite.builder import Value
from stretch.formats.tflite.source import Source
from stretch.formats.tflite.weights import growth
from stretch.formats.tflite.writer import Quant
from tests.scheduler.delegates import graphs
from tests.stretch.export.tflite.rounded import rounded_source, run, snr_db

pytest.importorskip("ai_edge_litert")
pytest.importorskip("torch")

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
