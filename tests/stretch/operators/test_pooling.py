import numpy as np
import pytest

from predictors.errors import StretchError
from predictors.graph import Op, OpGraph
from scheduler.delegates.reference import ReferenceDelegate
from stretch.export.onnx import save_onnx, to_onnx
from stretch.formats.tflite.source import Source
from tests.stretch.export.tflite.rounded import codes, quant_of, run

pytest.importorskip("ai_edge_litert")
pytest.importorskip("torch")
from torch import nn

from stretch.capture.trace import capture_traced as capture
from stretch.operators.pooling import adaptive_pool

POOL = {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1, 1, 1), "ceil_mode": False}


def graph_of(*ops, shape=(1, 4, 6, 6)):
    return OpGraph.build("case", [Op("x", "input", attrs={"shape": shape}), *ops], ops[-1].name)


def reals(graph, folder, x):
    save_onnx(to_onnx(graph, {}), folder / "op.onnx")
    return ReferenceDelegate().compile(folder / "op.onnx").evaluate([x])


def source_in_int8(graph, values):
    return Source(graph, {}, {op.name: quant_of(values[op.name]) for op in graph.ops})


def test_padding_of_a_maximum_never_wins(tmp_path):
    x = -1 - np.random.default_rng(0).random((1, 4, 6, 6), np.float32)
    graph = graph_of(Op("y", "max_pool", ("x",), POOL | {"dilation": (1, 1)}))
    values = reals(graph, tmp_path, x)
    assert (values["y"] < 0).all()
    assert np.array_equal(run(Source(graph, {}), tmp_path, x), values["y"])
    rounded = source_in_int8(graph, values)
    assert [code for code, _ in codes(rounded)][:3] == ["QUANTIZE", "PADV2", "MAX_POOL_2D"]
    assert np.abs(run(rounded, tmp_path, x) - values["y"]).max() <= 2 * rounded.scales["y"].scale


def test_dilated_maximum_is_refused_by_name():
    graph = graph_of(Op("y", "max_pool", ("x",), POOL | {"dilation": (2, 2)}), shape=(1, 4, 9, 9))
    with pytest.raises(StretchError, match=r"operator `y` \(max_pool\) is dilated"):
        codes(Source(graph, {}))


@pytest.mark.parametrize("counts", [False, True])
def test_mean_whose_windows_overhang_is_divided_by_what_counts(tmp_path, counts):
    x = np.random.default_rng(0).standard_normal((1, 4, 6, 6)).astype(np.float32)
    graph = graph_of(Op("y", "avg_pool", ("x",), POOL | {"ceil_mode": True, "count_include_pad": counts}))
    assert np.allclose(run(Source(graph, {}), tmp_path, x), reals(graph, tmp_path, x)["y"], atol=1e-6)


@pytest.mark.parametrize("keep", [False, True])
def test_global_pools_keep_or_drop_their_pixel(tmp_path, keep):
    x = np.random.default_rng(0).standard_normal((1, 4, 6, 6)).astype(np.float32)
    for kind, expected in (("global_avg_pool", x.mean((2, 3), keepdims=keep)), ("global_max_pool", x.max((2, 3), keepdims=keep))):
        got = run(Source(graph_of(Op("y", kind, ("x",), {"keepdims": keep})), {}), tmp_path, x)
        assert got.shape == expected.shape
        assert np.allclose(got, expected, atol=1e-6)


def test_adaptive_pooling_to_equal_windows_is_plain_pooling():
    assert adaptive_pool("avg", (1, 4, 8, 6), (4, 3)) == (
        "avg_pool",
        {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0, 0, 0), "ceil_mode": False, "count_include_pad": True},
    )
    assert adaptive_pool("max", (1, 4, 8, 6), (None, 6)) == ("identity", {})


@pytest.mark.parametrize(
    ("module", "problem"), [(nn.MaxPool2d(2, return_indices=True), "indices"), (nn.AvgPool2d(2, divisor_override=5), "own divisor")]
)
def test_pooling_that_is_not_supported_is_refused(module, problem):
    with pytest.raises(StretchError, match=problem):
        capture(nn.Sequential(module), (1, 4, 8, 8))
