"""The report of `stretch bench`."""

import pytest

from stretch.report.html.bench_page import bench_page
from stretch.report.html.page import render
from tests.scheduler.measure.bench.test_answer import contender, drawn
from tests.stretch.report.html.reading import checked
from tests.stretch.report.test_bench import answer


def test_every_contender_file_and_warning_is_on_the_page():
    seen = checked(render(bench_page(answer(), "stretch bench net.onnx")))
    for word in ("net.onnx, onnxruntime", "net.onnx, openvino", "mind", "A chip", "0" * 16, "5 starts of 30"):
        assert word in seen.text
    assert "svg" in seen.tags


@pytest.mark.slow
def test_many_contenders_are_in_the_table_and_the_first_are_drawn():
    rows = [contender(f"file{i}", drawn(1e6 * (i + 1), i)) for i in range(70)]
    seen = checked(render(bench_page(answer(rows))))
    assert all(row.name in seen.text for row in rows)
    assert "The first 60 of 70 are drawn." in seen.text


def test_single_round_has_a_page():
    assert "alone, timed" in checked(render(bench_page(answer([contender("alone", [[7]])])))).text
