import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from predictors.errors import StretchError
from predictors.graph import Op, OpGraph
from stretch.export.onnx import save_onnx, to_onnx
from stretch.export.tflite.source import read_source
from stretch.quantize.qdq import quantise
from tests.scheduler.delegates import graphs

WINDOW = {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1, 1, 1), "dilation": (1, 1), "groups": 1, "bias": False}


def network():
    """Convolution, batch-norm and activation twice, a gate, a matrix."""
    ops = [
        Op("x", "input", attrs={"shape": (1, 3, 6, 6)}),
        Op("c1", "conv", ("x",), WINDOW | {"out_channels": 4}),
        Op("b1", "batch_norm", ("c1",), {"eps": 1e-5, "momentum": 0.1, "affine": True}),
        Op("r1", "relu", ("b1",)),
        Op("s", "silu", ("r1",)),
        Op("c2", "conv", ("s",), WINDOW | {"out_channels": 4}),
        Op("a", "add", ("c2", "r1")),
        Op("p", "global_avg_pool", ("a",), {"keepdims": False}),
        Op("y", "linear", ("p",), {"out_features": 3, "bias": True}),
    ]
    return OpGraph.build("net", ops, "y")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    graph = network()
    random = np.random.default_rng(0)
    model = to_onnx(graph, graphs.weights_of(graph, random))
    save_onnx(model, folder / "float.onnx")
    int8 = quantise(model, [random.normal(size=(1, 3, 6, 6)).astype(np.float32) for _ in range(8)])
    save_onnx(int8, folder / "int8.onnx")
    return folder


def test_batch_norms_are_folded_into_float_weights(files):
    source = read_source(files / "float.onnx")
    assert [op.kind for op in source.graph.ops] == ["input", "conv", "relu", "silu", "conv", "add", "global_avg_pool", "linear"]
    assert source.weights["b1"].keys() == {"weight", "bias"}
    assert source.scales == {}


def test_scales_are_those_of_the_file_with_integers_from_minus_128(files):
    source = read_source(files / "int8.onnx")
    model = onnx.load(files / "int8.onnx")
    constants = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    in_file = {(float(constants[n.input[1]]), int(constants[n.input[2]]) - 128) for n in model.graph.node if n.op_type == "QuantizeLinear"}
    assert {(quant.scale, quant.zero_point) for quant in source.scales.values()} == in_file
    # every operator's result and the input are rounded, under the names that the operators have
    names = {op.name for op in source.graph.ops}
    assert names <= source.scales.keys()
    assert source.scales.keys() - names == {"s.sigmoid", "p.pooled"}  # inside of operators that are two nodes


def test_reals_are_what_the_integers_stand_for(files):
    source = read_source(files / "int8.onnx")
    assert source.integers.keys() == {op.name for op in source.graph.ops if op.kind in ("conv", "linear")}
    for name, rounded in source.integers.items():
        assert rounded.values.dtype == np.int8
        scales = np.broadcast_to(rounded.scales, (len(rounded.values),)).reshape(-1, *[1] * (rounded.values.ndim - 1))
        assert np.allclose(source.weights[name]["weight"], rounded.values * scales, rtol=1e-6)


def test_missing_or_foreign_file_is_named(tmp_path):
    with pytest.raises(StretchError, match=r"cannot read .*m\.onnx"):
        read_source(tmp_path / "m.onnx")
    (tmp_path / "m.onnx").write_bytes(b"no model")
    with pytest.raises(StretchError, match="is not an ONNX model"):
        read_source(tmp_path / "m.onnx")


def test_integers_of_sixteen_bits_are_refused(files, tmp_path):
    model = onnx.load(files / "int8.onnx")
    node = next(n for n in model.graph.node if n.op_type == "QuantizeLinear")
    zero = next(t for t in model.graph.initializer if t.name == node.input[2])
    zero.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(zero).astype(np.uint16), zero.name))
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(StretchError, match="rounds to uint16"):
        read_source(tmp_path / "m.onnx")
