"""Public tables as shipped measurements: units, names and selected rows."""

import pytest

from experiments.measurements import boards, npu
from experiments.measurements.phones import latencies
from predictors.measurements.networks import load_measurements


def board_row(board, threads, powersave, gpu=-1, model="resnet50"):
    settings = {"board": board, "num_threads": str(threads), "powersave": str(powersave), "gpu_device": str(gpu), "model": model}
    return settings | {"min_ms": "1.5", "max_ms": "9", "avg_ms": "4"}


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (board_row("Rockchip RK3399 (Cortex-A72 1.8GHz x 2)", 1, 2), ("rk3399", "1large", "fp32")),
        (board_row("Rockchip RK3588 (Cortex-A76 2.4GHz x 4)", 1, 2, model="vgg16_int8"), ("rk3588", "1large", "int8")),
        (board_row("Rockchip RK3588 (Quad Core A76 2.4GHz)", 4, 2), ("rk3588-fp16", "4large", "fp16")),
    ],
)
def test_cores_and_precision_follow_from_board_and_threads(row, expected):
    (latency,) = boards.latencies([row])
    assert (latency.device, latency.core_set, latency.precision, latency.ms) == (*expected, 1.5)


def test_only_rows_that_ran_fully_on_the_npu_are_kept():
    row = {"network": "resnet50", "device": "Samsung Galaxy S24", "precision": "w8a8", "runtime": "tflite"}
    row |= {"unit": "NPU", "gpu_layers": "0", "cpu_layers": "0", "ms": "0.58"}
    (latency,) = npu.latencies([row])
    assert (latency.device, latency.processor, latency.precision, latency.ms) == ("s24", "npu", "int8", 0.58)
    for change in ({"cpu_layers": "3"}, {"unit": "CPU"}, {"device": "SA8775P ADP"}, {"network": "sequencer2d_s"}, {"precision": "w4"}):
        assert not list(npu.latencies([row | change]))


@pytest.mark.slow
def test_macs_of_ncnn_networks_are_the_published_ones():
    graphs = load_measurements("boards").graphs
    published = {"mobilenet": 569e6, "vgg16": 15.47e9, "shufflenet_v2": 146e6, "yolov4-tiny": 3.45e9}
    assert {name: graphs[name].macs for name in published} == pytest.approx(published, rel=0.02)


def test_times_become_milliseconds_and_precisions_get_names_of_profiles():
    row, stated = (
        {"model": "net", "FLOPS": "1"},
        {"1large|float": ("1500.25", "10"), "1large|quant": ("700", "1"), "gpu|float": ("2000", "20")},
    )
    for name, (mean, std) in stated.items():
        row |= {f"pixel4|{name}|mean": mean, f"pixel4|{name}|std": std}
    mapping = {(latency.processor, latency.core_set, latency.precision): (latency.ms, latency.std_ms) for latency in latencies([row])}
    assert mapping == {
        ("cpu", "1large", "fp32"): (1.50025, 0.01),
        ("cpu", "1large", "int8"): (0.7, 0.001),
        ("gpu", "all", "fp16"): (2.0, 0.02),
    }
