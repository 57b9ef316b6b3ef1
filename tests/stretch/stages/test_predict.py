"""A prediction is what the predictor says of each processor."""

import pytest

from predictors.devices import load_device
from predictors.errors import UnknownNameError, UsageError
from predictors.predictor import LatencyPredictor
from stretch.stages.predict import predict_latency
from tests.predictors.networks import small_resnet

MI9, GRAPH = load_device("mi9"), small_resnet()


def test_each_processor_has_the_predictors_time_and_interval():
    found = predict_latency("small", GRAPH, MI9, list(MI9.variants), warnings=[])
    assert list(found.processors) == list(MI9.variants)
    for name, told in found.processors.items():
        expected = LatencyPredictor(MI9).predict(GRAPH, name)
        assert (told.latency_ms, told.low_ms, told.high_ms) == (expected.ms, expected.low_ms, expected.high_ms)
        assert (told.precision, told.source, told.kernels) == (expected.precision, "predicted", [])


@pytest.mark.parametrize(("processor", "precision", "error"), [("gpuu", None, UnknownNameError), ("dsp", "fp64", UsageError)])
def test_processor_or_precision_that_the_device_lacks_is_refused(processor, precision, error):
    with pytest.raises(error):
        predict_latency("small", GRAPH, MI9, [processor], precision, warnings=[])
