import numpy as np
import pytest

from predictors.errors import StretchError
from predictors.graph import Op, OpGraph
from scheduler.delegates.reference import ReferenceDelegate
from stretch.export.onnx import save_onnx, to_onnx
from stretch.export.tflite.source import read_source
from tests.scheduler.delegates import graphs
from tests.stretch.export.tflite.rounded import codes, run

pytest.importorskip("ai_edge_litert")


pytest.importorskip("torch")
from stretch.operators.lowerings import lowerings


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


def test_matrix_takes_up_the_order_of_a_flattened_image(tmp_path):
    found = agrees(tmp_path, *case(Op("f", "flatten", ("x",)), Op("y", "linear", ("f",), {"out_features": 7, "bias": True})))
    assert found == ["RESHAPE", "FULLY_CONNECTED"]


def test_flattened_image_that_leaves_the_subgraph_is_in_the_order_of_nchw(tmp_path):
    assert agrees(tmp_path, *case(Op("y", "flatten", ("x",)))) == ["TRANSPOSE", "RESHAPE"]


def test_matrix_over_the_rows_of_an_image_is_refused():
    graph, weights, _ = case(Op("y", "linear", ("x",), {"out_features": 7, "bias": True}))
    from stretch.formats.tflite.builder import Builder
    from stretch.formats.tflite.source import Source
    from stretch.formats.tflite.writer import Piece, Writer

    b = Builder(Piece(Writer("m"), "s"), {})
    with pytest.raises(StretchError, match=r"operator `y` \(linear\) reads 4 axes"):
        lowerings.get("linear").tflite(b, Source(graph, weights), graph.by_name["y"], [b.input("x", (1, 5, 4, 6))])
