"""The report of a simulation says that nothing was measured, and shows every inference."""

import pytest
from msgspec.structs import replace

from scheduler.bundle.load import load_bundle
from scheduler.simulate.answer import Request, simulate
from scheduler.simulate.figures import DecisionAnswer, PlanAnswer
from scheduler.simulate.load import Load
from scheduler.simulate.scene import Scene
from stretch.report.html.page import render
from stretch.report.html.simulation_page import simulation_page
from tests.predictors.specified import specified
from tests.stretch.report.html.reading import checked


@pytest.mark.representatives(1)
@pytest.mark.parametrize("runs", [1, 3, 5000])
def test_every_number_of_inferences_has_a_page(bundle_dir, runs):
    scene = Scene(runs=runs, traced=1, jitter=0.2, seed=1, loads=(Load("gpu", 0.9, 0, 40),))
    answer, found = simulate(load_bundle(bundle_dir), specified("pixel6"), scene, Request(deadline_ms=9.0), [])
    seen = checked(render(simulation_page(answer, found.latencies_ms, found.traces[0], "stretch simulate")))
    assert "Nothing was measured" in seen.text
    assert f"{answer.missed} of {runs}" in seen.text
    assert f"{answer.p99_ms:.2f} ms" in seen.text
    assert ("One in 3 inferences is drawn" in seen.text) == (runs == 5000)


def test_other_plans_and_their_reasons_are_listed(bundle_dir):
    answer, found = simulate(load_bundle(bundle_dir), specified("pixel6"), Scene(runs=2, traced=1), Request(), [])
    plans = tuple(PlanAnswer(bundle=name, makespan_ms=5.0, inferences=1) for name in ("a", "<b>"))
    made = DecisionAnswer(
        inference=1, at_ms=7.5, kind="move", before="a", after="<b>", reason="gpu takes 3 times as long", factors={"gpu": 3.0}
    )
    seen = checked(render(simulation_page(replace(answer, plans=plans, decisions=(made,)), found.latencies_ms, found.traces[0])))
    assert "1 7.5 move <b> gpu takes 3 times as long" in seen.text
