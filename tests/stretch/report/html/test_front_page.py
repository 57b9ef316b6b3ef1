"""The report of a search shows every design, and what stands beside them."""

import pytest

from stretch.planning.config import PlanConfig
from stretch.planning.front_answer import front_answer
from stretch.planning.pareto import front
from stretch.planning.several import several
from stretch.report.html.front_page import front_page
from stretch.report.html.page import render
from tests.stretch.planning.cost.measured import GRAPH, made
from tests.stretch.planning.test_pareto import MI9, REQUEST
from tests.stretch.report.html.reading import checked


@pytest.fixture(scope="module")
def answer():
    return front_answer(
        front(GRAPH, MI9, PlanConfig(**REQUEST, kinds=("stretch", "rows")), ("latency", "agreement"), 5, made()), {"search": 0.1}
    )


@pytest.mark.slow
def test_every_design_stands_in_picture_and_table(answer):
    seen = checked(render(front_page(answer, "stretch search")))
    for row in answer.designs:
        assert f"{row.predicted_ms:.2f} {row.speedup:.2f}" in seen.text
    assert "svg" in seen.tags
    assert f"{answer.best_single_ms:.2f} ms" in seen.text
    assert "stretch search" in seen.text


def test_designs_that_differ_have_no_picture_of_a_front():
    found = front_answer(several(GRAPH, MI9, PlanConfig(**REQUEST), 3, 1.5, None), {})
    seen = checked(render(front_page(found)))
    assert "svg" not in seen.tags
    assert "the best design in latency and others" in seen.text
