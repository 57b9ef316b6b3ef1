import numpy as np
import pytest

from predictors.graph import Op, OpGraph
from tests.scheduler.delegates import graphs
from tests.stretch.export.tflite.rounded import codes, run

pytest.importorskip("ai_edge_litert")
pytest.importorskip("torch")


def case(*ops, shape=(1, 6, 5, 4), seed=0):
    graph = OpGraph.build("case", [Op("x", "input", attrs={"shape": shape}), *ops], ops[-1].name)
    random = np.random.default_rng(seed)
    return graph, graphs.weights_of(graph, random), random.normal(size=shape).astype(np.float32)


def test_batch_norm_that_nothing_takes_up_is_a_factor_and_an_offset(tmp_path):
    norm = Op("y", "batch_norm", ("x",), {"eps": 1e-3, "momentum": 0.1, "affine": False})
    graph, weights, x = case(norm)
    from stretch.formats.tflite.source import Source

    source = Source(graph, weights)
    own = {key: value.reshape(1, -1, 1, 1) for key, value in weights["y"].items()}
    expected = (x - own["running_mean"]) / np.sqrt(own["running_var"] + 1e-3)
    assert np.allclose(run(source, tmp_path, x), expected, atol=1e-5)
    assert [code for code, _ in codes(source)] == ["MUL", "ADD"]
