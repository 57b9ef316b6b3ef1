"""Public tables as shipped measurements: what becomes of single rows, and what ships."""

import pytest

from experiments.measurements import boards, npu
from experiments.measurements import transformers as phones_transformers
from predictors.measurements.networks import load_measurements


def board_row(board, threads, powersave, gpu=-1, model="resnet50"):
    return {
        "board": board,
        "num_threads": str(threads),
        "powersave": str(powersave),
        "gpu_device": str(gpu),
        "model": model,
        "min_ms": "1.5",
        "max_ms": "9",
        "avg_ms": "4",
    }


@pytest.mark.parametrize(
    ("row", "found"),
    [
        (board_row("Rockchip RK3399 (Cortex-A72 1.8GHz x 2)", 1, 2), ("rk3399", "1large", "fp32")),
        (board_row("Rockchip RK3588 (Cortex-A76 2.4GHz x 4)", 1, 2, model="vgg16_int8"), ("rk3588", "1large", "int8")),
        (board_row("Rockchip RK3588 (Quad Core A76 2.4GHz)", 4, 2), ("rk3588-fp16", "4large", "fp16")),
    ],
)
def test_board_and_threads_tell_cores_and_precision(row, found):
    (latency,) = boards.latencies([row])
    assert (latency.device, latency.core_set, latency.precision) == found
    assert latency.ms == 1.5


def test_runs_on_unknown_cores_and_gpus_are_left_out():
    rows = [board_row("Raspberry Pi 5 Broadcom", 4, 0, gpu=0), board_row("Qualcomm Snapdragon 888", 8, 2), board_row("Toaster", 1, 0)]
    assert not list(boards.latencies(rows))


def test_only_rows_that_ran_on_the_npu_alone_are_kept():
    row = {
        "network": "resnet50",
        "device": "Samsung Galaxy S24",
        "precision": "w8a8",
        "runtime": "tflite",
        "unit": "NPU",
        "gpu_layers": "0",
        "cpu_layers": "0",
        "ms": "0.58",
    }
    (latency,) = npu.latencies([row])
    assert (latency.device, latency.processor, latency.precision, latency.ms) == ("s24", "npu", "int8", 0.58)
    for change in ({"cpu_layers": "3"}, {"unit": "CPU"}, {"device": "SA8775P ADP"}, {"network": "sequencer2d_s"}, {"precision": "w4"}):
        assert not list(npu.latencies([row | change]))


def test_columns_of_transformers_become_rows_in_ms():
    row = {"model": "mit-b0", "FLOPS": "1", "size": "2", "pixel4|1large|quant|mean": "1500.0", "pixel4|1large|quant|std": "12"}
    (latency,) = phones_transformers.latencies([row])
    assert (latency.device, latency.core_set, latency.precision, latency.ms, latency.std_ms) == ("pixel4", "1large", "int8", 1.5, 0.012)


@pytest.mark.slow
def test_published_multiply_accumulates_of_ncnns_networks():
    graphs = load_measurements("boards").graphs
    published = {"mobilenet": 569e6, "vgg16": 15.47e9, "shufflenet_v2": 146e6, "yolov4-tiny": 3.45e9}
    assert {name: graphs[name].macs for name in published} == pytest.approx(published, rel=0.02)
