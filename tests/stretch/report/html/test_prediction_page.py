"""The report of a prediction shows each processor, and the kernels of each."""

import pytest

from predictors.predictor import LatencyPredictor
from stretch.report.html.page import render
from stretch.report.html.prediction_page import prediction_page
from stretch.report.roofline import roofline_figure
from stretch.stages.predict import predict_latency
from tests.predictors.networks import resnet50
from tests.predictors.specified import specified
from tests.stretch.report.html.reading import checked


@pytest.mark.slow
def test_processors_kernels_and_roofline_are_on_it():
    device = specified("mi9")
    found = predict_latency("resnet50", resnet50(), device, list(device.processors), None, kernels=True, warnings=[])
    best = min(found.processors, key=lambda name: found.processors[name].latency_ms)
    figure = roofline_figure("resnet50", LatencyPredictor(device).predict(resnet50(), best), device, best)
    seen = checked(render(prediction_page(found, figure, "stretch predict resnet50")))
    for name, row in found.processors.items():
        assert f"{name} {row.precision} {row.latency_ms:.2f} {row.low_ms:.2f} {row.high_ms:.2f}" in seen.text
        longest = max(row.kernels, key=lambda each: each.ms)
        assert f"{longest.name} {longest.kind}" in seen.text
    assert seen.tags.count("svg") == 2
    assert "stretch predict resnet50" in seen.text
