"""The report of a refusal says why, what would give way, and where the model runs best as it is."""

import pytest

from predictors.errors import InfeasibleError, TightRule
from predictors.predictor import LatencyPredictor
from stretch.report.html.page import render
from stretch.report.html.refusal_page import refusal_page
from stretch.stages.predict import predict_latency
from tests.predictors.networks import resnet50
from tests.predictors.specified import specified
from tests.stretch.report.html.reading import checked


def test_refusal_names_the_limits_and_the_best_processor():
    device = specified("mi9")
    alone = predict_latency("resnet50", resnet50(), device, list(device.processors), None, warnings=[]).processors
    error = InfeasibleError("no design keeps <all> limits", "widen one", [TightRule("min_width", 0.9, 0.5), TightRule("alpha", 0.01)])
    seen = checked(render(refusal_page("resnet50", "mi9", error, alone, "stretch branch resnet50 --device mi9")))
    best = min(alone, key=lambda name: alone[name].latency_ms)
    assert "No design keeps <all> limits. Widen one." in seen.text
    assert "--min-width 0.9 0.5" in seen.text
    assert "--alpha 0.01 none found" in seen.text
    assert f"run it on {best}" in seen.text
    assert f"{LatencyPredictor(device).predict(resnet50(), best).ms:.2f} ms" in seen.text


@pytest.mark.parametrize("hint", [None, "do something else"])
def test_refusal_without_rules_or_predictions_is_a_page_too(hint):
    seen = checked(render(refusal_page("x", "y", InfeasibleError("it cannot be done", hint), {})))
    assert "It cannot be done." in seen.text
