"""A front for people."""

import io

import pytest
from msgspec.structs import replace
from rich.console import Console

from stretch.planning.config import PlanConfig
from stretch.planning.front_answer import front_answer
from stretch.planning.pareto import front
from stretch.report.front import draw_front, print_front, value_of
from tests.stretch.planning.cost.measured import GRAPH, made
from tests.stretch.planning.test_pareto import MI9, REQUEST


@pytest.fixture(scope="module")
def answer():
    config = PlanConfig(**REQUEST, kinds=("stretch", "rows"))
    return front_answer(front(GRAPH, MI9, config, ("latency", "agreement"), 5, made()), {})


def printed(answer, width):
    stream = io.StringIO()
    print_front(Console(file=stream, width=width), answer)
    return stream.getvalue()


@pytest.mark.representatives(1)
@pytest.mark.parametrize("width", [200, 90])
def test_table_has_every_design_with_its_numbers_and_nothing_cut(answer, width):
    text = printed(answer, width)
    for row in answer.designs:
        assert f"{row.predicted_ms:.2f}" in text
        assert f"{row.speedup:.2f}" in text
        assert f"{row.accuracy.agreement:.1%}" in text
    assert f"{answer.best_single_ms:.2f} ms on {answer.best_single_processor}" in text
    assert "…" not in text
    assert "64 images" in text


def test_table_without_a_predictor_has_no_column_for_it(answer):
    rows = [replace(row, accuracy=None) for row in answer.designs]
    text = printed(replace(answer, pareto=["latency", "macs"], designs=rows, sensitivity=None), 200)
    assert "agreement" not in text
    assert value_of(rows[0], "macs") == rows[0].macs_ratio


@pytest.mark.slow
def test_picture_is_the_same_for_the_same_front(answer, tmp_path):
    draw_front(answer, tmp_path / "a.svg")
    draw_front(answer, tmp_path / "b.svg")
    text = (tmp_path / "a.svg").read_text()
    assert text == (tmp_path / "b.svg").read_text()
    assert "<svg" in text
    draw_front(answer, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"
