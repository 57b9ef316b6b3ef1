import numpy as np
import pytest

from predictors.graph import Op, OpGraph
from scheduler.delegates.reference import ReferenceDelegate
from stretch.export.onnx import save_onnx, to_onnx
from stretch.formats.tflite.source import Source
from tests.stretch.export.tflite.rounded import codes, quant_of, run

pytest.importorskip("ai_edge_litert")


def graph_of(*ops, shape=(1, 4, 6, 6)):
    return OpGraph.build("case", [Op("x", "input", attrs={"shape": shape}), *ops], ops[-1].name)


def reals(graph, folder, x):
    save_onnx(to_onnx(graph, {}), folder / "op.onnx")
    return ReferenceDelegate().compile(folder / "op.onnx").evaluate([x])


def source_in_int8(graph, values):
    return Source(graph, {}, {op.name: quant_of(values[op.name]) for op in graph.ops})


def test_concatenated_parts_of_different_scales_are_re_quantised(tmp_path):
    """One part is a hundred times the other: in the other's scale either would be lost."""
    x = np.random.default_rng(0).standard_normal((1, 4, 6, 6)).astype(np.float32)
    graph = graph_of(Op("small", "mul_scalar", ("x",), {"value": 0.01}), Op("y", "concat", ("x", "small")))
    values = reals(graph, tmp_path, x)
    source = source_in_int8(graph, values)
    assert [code for code, _ in codes(source)] == ["QUANTIZE", "MUL", "QUANTIZE", "CONCATENATION", "DEQUANTIZE"]
    assert np.abs(run(source, tmp_path, x) - values["y"]).max() <= 2 * source.scales["y"].scale


@pytest.mark.parametrize("padding", [(1, 0, 2, 3), (-1, -1, 1, 1), (-2, 1, 0, -3), (-1, -2, -1, 0)])
def test_padding_adds_zeros_and_cuts_off_where_it_is_negative(tmp_path, padding):
    torch = pytest.importorskip("torch")
    graph, x = (
        graph_of(Op("y", "pad", ("x",), {"padding": padding})),
        np.random.default_rng(0).standard_normal((1, 4, 6, 6)).astype(np.float32),
    )
    top, left, bottom, right = padding
    want = torch.nn.functional.pad(torch.from_numpy(x), (left, right, top, bottom)).numpy()
    assert np.array_equal(reals(graph, tmp_path, x)["y"], want)
    assert np.array_equal(run(Source(graph, {}), tmp_path, x), want)


def test_rows_of_an_image_whose_upper_rows_are_cut_off_are_read_where_they_are():
    graph = graph_of(Op("y", "pad", ("x",), {"padding": (-1, 0, 1, 0)}))
    upper, lower = (graph.op_rows(graph.by_name["y"], *part) for part in ((0, 3), (3, 6)))
    assert [(band.reads[0].start, band.reads[0].stop, band.attrs["padding"]) for band in (upper, lower)] == [
        (1, 4, (0, 0, 0, 0)),
        (4, 6, (0, 0, 1, 0)),
    ]
