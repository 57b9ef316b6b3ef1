import numpy as np
import pytest

from predictors.graph import Op
from stretch.formats.tflite.source import Source
from tests.stretch.export.tflite.rounded import codes, run
from tests.stretch.operators.test_pooling import graph_of, reals, source_in_int8

pytest.importorskip("ai_edge_litert")
torch = pytest.importorskip("torch")

from stretch.operators.bands import ConcatRows, RowSlice  # noqa: E402 - torch may be missing


def cut_and_joined():
    """The lower rows above the upper ones."""
    ops = (
        Op("upper", "slice_rows", ("x",), {"start": 0, "stop": 2}),
        Op("lower", "slice_rows", ("x",), {"start": 2, "stop": 6}),
        Op("y", "concat_rows", ("lower", "upper")),
    )
    return graph_of(*ops)


def test_rows_change_places_in_files_as_they_do_in_torch(tmp_path):
    graph, x = cut_and_joined(), np.random.default_rng(0).standard_normal((1, 4, 6, 6)).astype(np.float32)
    want = ConcatRows()(RowSlice(2, 6)(torch.from_numpy(x)), RowSlice(0, 2)(torch.from_numpy(x))).numpy()
    assert np.array_equal(reals(graph, tmp_path, x)["y"], want)
    assert np.array_equal(run(Source(graph, {}), tmp_path, x), want)


def test_bands_of_one_scale_are_joined_without_rounding_them_again(tmp_path):
    graph, x = cut_and_joined(), np.random.default_rng(0).standard_normal((1, 4, 6, 6)).astype(np.float32)
    source = source_in_int8(graph, dict.fromkeys(("x", "upper", "lower", "y"), x))
    assert [code for code, _ in codes(source)] == ["QUANTIZE", "SLICE", "SLICE", "CONCATENATION", "DEQUANTIZE"]
    step = source.scales["y"].scale
    assert np.abs(run(source, tmp_path, x) - np.concatenate([x[:, :, 2:], x[:, :, :2]], 2)).max() <= step
