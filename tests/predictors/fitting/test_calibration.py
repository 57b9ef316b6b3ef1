"""Calibration by whole networks: what was measured comes back, the interval narrows, and tables that cannot be are refused."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from predictors.devices import load_device
from predictors.errors import StretchError, UsageError
from predictors.fits import Calibration
from predictors.fitting.calibration import NetworkTime, calibrate, read_networks
from predictors.measurements.networks import load_measurements
from predictors.predictor import LatencyPredictor

NETWORKS = {
    name: graph for name, graph in load_measurements("phones").graphs.items() if name.startswith(("resnet1", "mobilenetv2", "regnetx"))
}
TRUE = {"dense": 0.7, "depthwise": 2.1, "other": 0.8}


def truth(processor="gpu", precision="fp16"):
    """A Mi 9 whose processor differs from the profile by known factors, and the times of all networks on it."""
    base = load_device("mi9")
    rows = [NetworkTime(model=name, processor=processor, precision=precision, ms=1.0) for name in list(NETWORKS)[:1]]
    _, news = calibrate(base, "mi9", rows, lambda row: NETWORKS[row.model], {}, "truth")
    [new] = news.values()
    calibration = Calibration(TRUE, 0.02, new.prior.calibration.networks, "truth")
    key = (new.prior.processor, new.prior.core_set, new.prior.precision)
    device = replace(base, fits={}, priors={key: msgspec.structs.replace(new.prior, calibration=calibration)})
    predictor = LatencyPredictor(device)
    return base, {name: predictor.predict(graph, processor, precision).ms for name, graph in NETWORKS.items()}


def calibrated(base, rows):
    _, news = calibrate(base, "mi9", rows, lambda row: NETWORKS[row.model], NETWORKS, "least of 50 runs")
    [new] = news.values()
    key = (new.prior.processor, new.prior.core_set, new.prior.precision)
    return LatencyPredictor(replace(base, fits={}, priors={key: new.prior})), new


def test_five_networks_predict_all_others_of_a_device_that_differs_by_family():
    base, times = truth()
    names = ["resnet10", "mobilenetv2_w3d4", "regnetx006", "resnet18_w3d4", "mobilenetv2b_wd2"]
    predictor, new = calibrated(base, [NetworkTime(model=name, processor="gpu", ms=times[name]) for name in names])
    errors = [predictor.predict(graph, "gpu").ms / times[name] - 1 for name, graph in NETWORKS.items()]
    assert np.mean(np.abs(errors)) < 0.05
    estimate = predictor.predict(NETWORKS["resnet16"], "gpu")
    assert estimate.origin == "networks"
    assert estimate.calibrated
    assert estimate.low_ms < times["resnet16"] < estimate.high_ms
    assert new.next_network in NETWORKS


def test_interval_narrows_with_each_network_and_promises_what_the_next_one_gives():
    base, times = truth()
    rows = [NetworkTime(model=name, processor="gpu", ms=times[name]) for name in ("resnet10", "mobilenetv2_w3d4", "regnetx006")]
    highs = [calibrated(base, rows[: count + 1])[1].prior.interval.high for count in range(3)]
    assert highs[0] > highs[1] > highs[2]
    assert calibrated(base, rows)[1].next_width < highs[2]


def test_time_of_a_sibling_counts_less_than_one_of_the_device():
    base, times = truth()
    rows = [NetworkTime(model="resnet10", processor="gpu", ms=times["resnet10"])]
    off = NetworkTime(model="resnet18_w3d4", processor="gpu", ms=2 * times["resnet18_w3d4"])
    near, far = (
        calibrated(base, [*rows, row])[0].predict(NETWORKS["resnet10"], "gpu").ms for row in (msgspec.structs.replace(off, spread=0.5), off)
    )
    assert abs(near / times["resnet10"] - 1) < abs(far / times["resnet10"] - 1)


def test_constant_of_pipelines_is_no_part_of_a_networks_time():
    base, times = truth()
    rows = [
        NetworkTime(model=name, processor="gpu", ms=times[name] + 8, pipeline=True)
        for name in ("resnet10", "mobilenetv2_w3d4", "regnetx006", "mobilenetv2_wd4", "resnet16")
    ]
    predictor, new = calibrated(base, rows)
    assert 4 < new.prior.calibration.pipeline_ms < 12
    assert predictor.predict(NETWORKS["resnet16"], "gpu").ms < times["resnet16"] + 4
    with pytest.raises(StretchError, match="2 pipelines"):
        calibrated(base, rows[:2])


def test_row_of_another_unit_or_network_is_named():
    base, times = truth()
    rows = [NetworkTime(model=name, processor="gpu", ms=times[name]) for name in ("resnet10", "mobilenetv2_w3d4", "regnetx006")]
    with pytest.raises(StretchError, match=r"regnetx006 on .* times less than the other rows"):
        calibrated(base, [*rows[:2], msgspec.structs.replace(rows[2], ms=rows[2].ms / 1000)])
    with pytest.raises(StretchError, match="not the network measured"):
        calibrated(base, [msgspec.structs.replace(rows[0], macs=100.0)])
    with pytest.raises(UsageError, match="changes what a network computes"):
        calibrate(base, "mi9", rows, lambda row: NETWORKS[row.model], {}, "", ["silu=relu6"])


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["resnet34,gpu,fp16,0"], "line 2: `ms` is wrong"),
        (["resnet34,gpu,fp16,20", "resnet34,gpu,fp16,30"], "line 3: the same measurement stands in line 2"),
        ([], "no measurement"),
    ],
)
def test_table_that_cannot_be_is_refused_with_its_line(tmp_path, lines, words):
    table = tmp_path / "networks.csv"
    table.write_text("\n".join(["model,processor,precision,ms", *lines]) + "\n")
    with pytest.raises(StretchError, match=words):
        read_networks(table)
    table.write_text("model,processor\nresnet34,gpu\n")
    with pytest.raises(StretchError, match="column `ms` is missing"):
        read_networks(table)


def test_core_more_makes_no_network_slower():
    """`1large3med` of the Mi 9, which was never measured, contains `3med`."""
    predictor = LatencyPredictor(load_device("mi9"))
    for precision in ("fp32", "int8"):
        for graph in list(NETWORKS.values())[:4]:
            assert predictor.predict(graph, "cpu[1large3med]", precision).ms < predictor.predict(graph, "cpu[3med]", precision).ms


def test_release_profile_predicts_a_network_that_it_was_not_calibrated_by():
    """ResNet-50 on the paper's own phone took 28.8, 37.4 and 30.4 ms."""
    graph = load_measurements("npu").graphs["resnet50"]
    predictor = LatencyPredictor(load_device("mi9-release"))
    for processor, ms in (("cpu", 28.8), ("gpu", 37.4), ("dsp", 30.4)):
        estimate = predictor.predict(graph, processor)
        assert estimate.low_ms < ms < estimate.high_ms
        assert abs(estimate.ms / ms - 1) < 0.12
