import numpy as np
import pytest

from predictors.graph import Op
from tests.stretch.export.tflite.rounded import codes, run
from tests.stretch.operators.test_pooling import graph_of, source_in_int8

pytest.importorskip("ai_edge_litert")


def cut_and_joined():
    """The lower rows above the upper ones."""
    ops = (
        Op("upper", "slice_rows", ("x",), {"start": 0, "stop": 2}),
        Op("lower", "slice_rows", ("x",), {"start": 2, "stop": 6}),
        Op("y", "concat_rows", ("lower", "upper")),
    )
    return graph_of(*ops)


def test_bands_of_one_scale_are_joined_without_rounding_them_again(tmp_path):
    graph, x = cut_and_joined(), np.random.default_rng(0).standard_normal((1, 4, 6, 6)).astype(np.float32)
    source = source_in_int8(graph, dict.fromkeys(("x", "upper", "lower", "y"), x))
    assert [code for code, _ in codes(source)] == ["QUANTIZE", "SLICE", "SLICE", "CONCATENATION", "DEQUANTIZE"]
    step = source.scales["y"].scale
    assert np.abs(run(source, tmp_path, x) - np.concatenate([x[:, :, 2:], x[:, :, :2]], 2)).max() <= step
