"""The report of `stretch bench`."""

from stretch.report.html.bench_page import bench_page
from stretch.report.html.page import render
from tests.stretch.report.html.reading import checked
from tests.stretch.report.test_bench import answer


def test_every_contender_file_and_warning_is_on_the_page():
    seen = checked(render(bench_page(answer(), "stretch bench net.onnx")))
    for word in ("net.onnx, onnxruntime", "net.onnx, openvino", "mind", "A chip", "0" * 16, "5 starts of 30"):
        assert word in seen.text
    assert "svg" in seen.tags
