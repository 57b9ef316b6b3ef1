"""Predictions add up and come near public figures."""

from dataclasses import replace

import pytest
from msgspec import structs

from predictors.devices import list_devices, load_device
from predictors.errors import StretchError
from predictors.predictor import LatencyPredictor
from tests.predictors.networks import efficientnet_lite4, resnet50, small_resnet
from tests.predictors.specified import specified

MI9 = LatencyPredictor(specified("mi9"))


@pytest.mark.representatives(24)
@pytest.mark.parametrize("device", list_devices())
def test_estimate_is_the_sum_of_its_kernels_inside_its_interval(device):
    predictor = LatencyPredictor(load_device(device))
    for name in predictor.device.variants:
        estimate = predictor.predict(small_resnet(), name)
        assert estimate.computing_ms == pytest.approx(sum(k.time.ms for k in estimate.kernels))
        assert estimate.low_ms < estimate.ms < estimate.high_ms
        assert (estimate.processor, estimate.source) == (name, "predicted")
        fit = predictor.device.processor(name).fits.get(estimate.precision)
        assert estimate.calibrated == (fit is not None and fit.sibling is None)
        assert sum(k.kernel.macs for k in estimate.kernels) == small_resnet().macs


@pytest.mark.parametrize(
    ("make", "processor", "measured_ms"),
    [
        # Sample output of the NN-Stretch release: CPU and DSP int8, GPU fp16, 224×224.
        (resnet50, "cpu", 28.8),
        (resnet50, "gpu", 37.4),
        (resnet50, "dsp", 30.4),
        (efficientnet_lite4, "cpu", 16.3),
        (efficientnet_lite4, "gpu", 18.5),
        (efficientnet_lite4, "dsp", 16.3),
    ],
)
def test_uncalibrated_mi9_is_of_the_order_of_published_figures(make, processor, measured_ms):
    estimate = MI9.predict(make(), processor)
    assert estimate.low_ms < measured_ms < estimate.high_ms
    assert estimate.ms == pytest.approx(measured_ms, rel=0.15)


def test_kernels_costed_one_by_one_give_the_same_sum():
    graph = small_resnet()
    kernels = MI9.kernels(graph, "dsp")
    assert MI9.kernels_time(kernels, "dsp").ms == pytest.approx(MI9.predict(graph, "dsp").ms)
    assert sum(MI9.kernel_ms(k, "dsp") for k in kernels) == pytest.approx(MI9.predict(graph, "dsp").ms)


def lacking(processor, *kinds):
    device = specified("mi9")
    profile = structs.replace(device.processors[processor], unsupported=kinds)
    return LatencyPredictor(replace(device, processors={**device.processors, processor: profile}))


def test_operator_that_a_processor_lacks_costs_what_the_cpu_takes_and_the_exchange():
    graph = efficientnet_lite4()
    there, without = MI9, lacking("gpu", "relu6")
    estimate = without.predict(graph, "gpu", "fp16")
    away = [each for each in estimate.kernels if each.kernel.elsewhere]
    assert len(away) == sum(op.kind == "relu6" for op in graph.ops)
    cpu = LatencyPredictor(specified("mi9"))
    for each in away[:3]:
        cost = each.kernel.cost
        moved = cpu.links.ms("gpu", "cpu", cost.reads, "fp16") + cpu.links.ms("cpu", "gpu", cost.writes, "fp16")
        assert each.time.ms == pytest.approx(moved + cpu.kernel_ms(replace(each.kernel, elsewhere=False), "cpu"))
    assert estimate.ms > there.predict(graph, "gpu", "fp16").ms + len(away) * 0.1
    assert without.predict(graph, "cpu").ms == there.predict(graph, "cpu").ms


@pytest.mark.parametrize(
    ("processor", "kind", "why"), [("gpu", "relu7", "no kind of operator"), ("cpu", "relu", "computes what others do not")]
)
def test_list_of_lacking_operators_that_cannot_be_is_refused(processor, kind, why):
    with pytest.raises(StretchError, match=why):
        lacking(processor, kind).predict(small_resnet(), processor)
