"""The report of a run keeps what was measured here apart from what is predicted of the device."""

from scheduler.answer import run_answer
from scheduler.bundle.load import load_bundle
from scheduler.checks.judge import judge
from scheduler.checks.verify import random_input
from scheduler.measure.benchmark import Effort, benchmark
from scheduler.measure.energy.loop import measure_energy
from scheduler.runtime.session import Session
from scheduler.simulate.predicted import predicted_trace
from stretch.report.html.page import render
from stretch.report.html.run_page import run_page
from tests.predictors.specified import specified
from tests.stretch.report.html.reading import checked


def test_measured_and_predicted_stand_apart(bundle_dir):
    bundle = load_bundle(bundle_dir)
    x = random_input(bundle)
    with Session(bundle) as session:
        right, result = judge(session, x), benchmark(session, x, Effort(3, 0))
        answer = run_answer(session, result, right, None, measure_energy(lambda: session.run(x)), warnings=["<mind>"])
    predicted = predicted_trace(bundle.manifest, specified("pixel6"))
    both = checked(render(run_page(answer, result.traces, predicted, "stretch run")))
    assert "The inference in the middle of all by its time, measured here" in both.text
    assert f"expects on {answer.device}: {predicted.makespan_ms:.2f} ms. It says nothing of this machine." in both.text
    assert "measured, one timeline predicted" in both.text
    assert "<mind>" in both.text
    alone = checked(render(run_page(answer, result.traces, None)))
    assert "predicted" not in alone.text.partition("How this came about")[0]
    for name in answer.subgraphs_alone_ms:
        assert name in alone.text
