import numpy as np
import pytest

from predictors.errors import StretchError
from predictors.graph import Op, OpGraph
from scheduler.delegates.reference import ReferenceDelegate
from stretch.export.onnx import save_onnx, to_onnx
from stretch.export.tflite.source import read_source
from stretch.export.tflite.weights import linear
from tests.scheduler.delegates import graphs
from tests.stretch.export.tflite.rounded import codes, rounded_source, run, snr_db

pytest.importorskip("ai_edge_litert")

CONV = {"kernel": (3, 3), "stride": (1, 1), "padding": (1,) * 4, "dilation": (1, 1), "bias": True}


def case(*ops, shape=(1, 6, 5, 4), seed=0):
    graph = OpGraph.build("case", [Op("x", "input", attrs={"shape": shape}), *ops], ops[-1].name)
    random = np.random.default_rng(seed)
    return graph, graphs.weights_of(graph, random), random.normal(size=shape).astype(np.float32)


def agrees(folder, graph, weights, x):
    save_onnx(to_onnx(graph, weights), folder / "op.onnx")
    expected = graphs.run(ReferenceDelegate(), folder / "op.onnx", graph, x)
    source = read_source(folder / "op.onnx")
    assert np.allclose(run(source, folder, x), expected, rtol=1e-4, atol=1e-4)
    return [code for code, _ in codes(source)]


@pytest.mark.parametrize(
    ("groups", "outputs", "code"), [(6, 6, "DEPTHWISE_CONV_2D"), (6, 12, "DEPTHWISE_CONV_2D"), (3, 6, "CONV_2D"), (1, 5, "CONV_2D")]
)
def test_groups_of_one_channel_are_depthwise_and_others_grouped(tmp_path, groups, outputs, code):
    assert agrees(tmp_path, *case(Op("y", "conv", ("x",), CONV | {"groups": groups, "out_channels": outputs}))) == [code]


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


def test_matrix_takes_up_the_order_of_a_flattened_image(tmp_path):
    found = agrees(tmp_path, *case(Op("f", "flatten", ("x",)), Op("y", "linear", ("f",), {"out_features": 7, "bias": True})))
    assert found == ["RESHAPE", "FULLY_CONNECTED"]


def test_flattened_image_that_leaves_the_subgraph_is_in_the_order_of_nchw(tmp_path):
    assert agrees(tmp_path, *case(Op("y", "flatten", ("x",)))) == ["TRANSPOSE", "RESHAPE"]


def test_matrix_over_the_rows_of_an_image_is_refused():
    graph, weights, _ = case(Op("y", "linear", ("x",), {"out_features": 7, "bias": True}))
    from stretch.export.tflite.builder import Builder
    from stretch.export.tflite.source import Source
    from stretch.export.tflite.writer import Piece, Writer

    b = Builder(Piece(Writer("m"), "s"), {})
    with pytest.raises(StretchError, match=r"operator `y` \(linear\) reads 4 axes"):
        linear(b, Source(graph, weights), graph.by_name["y"], [b.input("x", (1, 5, 4, 6))])


def test_batch_norm_that_nothing_takes_up_is_a_factor_and_an_offset(tmp_path):
    norm = Op("y", "batch_norm", ("x",), {"eps": 1e-3, "momentum": 0.1, "affine": False})
    graph, weights, x = case(norm)
    from stretch.export.tflite.source import Source

    source = Source(graph, weights)
    own = {key: value.reshape(1, -1, 1, 1) for key, value in weights["y"].items()}
    expected = (x - own["running_mean"]) / np.sqrt(own["running_var"] + 1e-3)
    assert np.allclose(run(source, tmp_path, x), expected, atol=1e-5)
    assert [code for code, _ in codes(source)] == ["MUL", "ADD"]
