"""Tables of measurements are kept, gone on with, and brought in from others; profiles are written of them."""

import os
import signal
import subprocess
import sys

import pytest
import tomli_w

from predictors.devices import load_device
from predictors.errors import StretchError, UsageError
from predictors.fusion import fuse
from predictors.measurements.networks import Measurements, Source, load_measurements
from predictors.measurements.tables import KernelLatency, Latency
from predictors.predictor import LatencyPredictor
from scheduler.measure.steady import LinkTimes, Reads
from stretch.planning.cost import compare
from stretch.tools.profiling.places import Place
from stretch.tools.profiling.styles import STYLES, draw
from stretch.tools.profiling.writing import Crossing, Table, Where, ingest, make_profile
from tests.predictors.measurements.test_benchncnn import OUTPUT
from tests.predictors.measurements.test_litert import PROFILE

SOURCE = Source("random networks", "", "", "CC0-1.0", "a machine; a runtime")


def filled(folder, seeds=(0, 1)) -> Table:
    table = Table.open(folder, SOURCE, resume=False)
    for seed in seeds:
        graph = draw("plain", seed)
        key = ("here", graph.name, "cpu", "1core", "fp32", "a runtime")
        kernels = [KernelLatency(*key, kernel.name, "", *kernel.cost, 1.5) for kernel in fuse(graph, "onnxruntime")]
        table.add(graph, "draws 0", Latency(*key, 2.5, 0.1), kernels)
    return table


def test_a_saved_table_is_gone_on_with_where_it_was(tmp_path):
    table = filled(tmp_path / "m")
    table.save()
    again = Table.open(tmp_path / "m", SOURCE, resume=True)
    assert (again.graphs, again.families) == (table.graphs, table.families)
    assert (again.latencies, again.kernels) == (table.latencies, table.kernels)
    assert load_measurements(tmp_path / "m").latencies == table.latencies


def test_measurements_are_not_lost_by_starting_anew(tmp_path):
    filled(tmp_path / "m").save()
    with pytest.raises(StretchError, match="has measurements already") as refusal:
        Table.open(tmp_path / "m", SOURCE, resume=False)
    assert "--resume" in str(refusal.value.hint)


def test_measurements_of_another_machine_are_not_mixed_in(tmp_path):
    filled(tmp_path / "m").save()
    other = Source(SOURCE.title, "", "", SOURCE.licence, "another machine")
    with pytest.raises(StretchError, match="of another machine or other versions: a machine; a runtime"):
        Table.open(tmp_path / "m", other, resume=True)


def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "m").write_text("a file")
    table = filled(tmp_path / "m" / "inside")
    with pytest.raises(StretchError, match="cannot make the folder"):
        table.save()


def test_ctrl_c_while_saving_leaves_whole_files(tmp_path):
    """A process that saves without end is interrupted: what lies there can be read, and nothing else lies there."""
    code = f"""
import sys
from pathlib import Path
from tests.stretch.tools.profiling.test_writing import filled
table = filled(Path({str(tmp_path / "m")!r}), range(6))
table.save()
print("ready", flush=True)
while True:
    table.save()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=os.getcwd()) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        process.wait(60)
    table = load_measurements(tmp_path / "m")
    assert len(table.latencies) == 6
    assert sorted(path.name for path in (tmp_path / "m").iterdir()) == ["kernels.csv", "latencies.csv", "networks.jsonl.gz", "source.toml"]


WHERE = Where("myphone", "cpu[1large]", None, "")


def capture(name: str):
    """A graph that stands for a model's."""
    return draw("plain", len(name))


@pytest.fixture
def profile(tmp_path):
    path = tmp_path / "profile.csv"
    path.write_text(PROFILE)
    return path


def test_an_operator_profile_becomes_the_time_of_its_network(profile, tmp_path):
    ingest(profile, "resnet18", WHERE, tmp_path, capture)
    ingest(profile, "resnet34", WHERE, tmp_path, capture)
    table = load_measurements(tmp_path / "myphone.measurements")
    assert [(row.network, row.processor, row.core_set, row.precision, row.ms) for row in table.latencies] == [
        ("resnet18", "cpu", "1large", "fp32", 2.5),
        ("resnet34", "cpu", "1large", "fp32", 2.5),
    ]
    assert set(table.families.values()) == {"resnet"}


def test_networks_of_benchncnn_are_those_of_the_same_architecture(tmp_path):
    (tmp_path / "bench.txt").write_text(OUTPUT)
    rows = ingest(tmp_path / "bench.txt", None, WHERE, tmp_path, capture)
    assert [(row.network, row.precision) for row in rows] == [("squeezenet1_1", "fp16"), ("squeezenet1_1", "int8"), ("resnet18", "fp16")]


@pytest.mark.parametrize(
    ("where", "sentence"),
    [
        (Where("my/phone", "cpu[1large]", None, ""), "cannot be the name of a device"),
        (Where("myphone", "cpu", None, ""), "no processor with its core set"),
        (Where("myphone", "cpu[1large]", "fp64", ""), "`fp64` is no precision"),
    ],
)
def test_what_ran_it_is_checked(profile, tmp_path, where, sentence):
    with pytest.raises(UsageError, match=sentence):
        ingest(profile, "resnet18", where, tmp_path, capture)
    assert not list(tmp_path.glob("*.measurements"))


PLACES = [Place("cpu", "1core", "cpu", (0,), 1.0), Place("cpu", "2cores", "cpu", (0, 1), 1.0), Place("gpu", "all", "opencl", (1,), 1.0)]


# 1 MB in at 8 and 1 MB out at 4 GB/s: 0.125 and 0.25 ms, and 0.05 an exchange
READS = Reads(1_000_000, 1_000_000, (0.9 * 0.425,) * 9, (3.5 * 0.425,) * 9, 20.0, 0.03)


CROSSING = Crossing(LinkTimes(0.05, 8.0, 4.0), (1.02, 1.05), (1.2, 1.3), "a runtime", READS)


RATE = 5e7


def measured(place: Place) -> list[KernelLatency]:
    """Kernels that all reach 10⁸ operations a millisecond, or move 10⁷ bytes in one."""
    rows = []
    for style in STYLES:
        for kernel in fuse(draw(style, 0), place.backend):
            cost = kernel.cost
            ms = max(1e-3, kernel.macs / RATE, 4 * (cost.reads + cost.writes) / 1e7)
            rows.append(KernelLatency("x", style, place.family, place.core_set, "fp32", "a runtime", kernel.name, "", *cost, ms))
    return rows


def written(folder, kernels):
    path = folder / "x.toml"
    table = Measurements(Source("a test", "", "", "CC0-1.0", ""), {}, {}, [], kernels)
    path.write_text(tomli_w.dumps(make_profile("x", "a machine", PLACES, table, {"gpu": CROSSING})))
    return load_device(path)


def test_a_profile_is_one_and_says_what_was_measured(tmp_path):
    device = written(tmp_path, [row for place in PLACES for row in measured(place)])
    assert set(device.variants) == {"cpu", "cpu[2cores]", "gpu"}
    gpu, link = device.processors["gpu"], device.links["gpu"]
    assert (gpu.contention.value, device.processors["cpu"].contention.value) == (1.05, 1.02)
    assert gpu.contention_memory is not None
    assert gpu.contention_memory.value == 1.3
    assert link.map_ms.value + link.unmap_ms.value + link.sync_ms.value == pytest.approx(0.05)
    assert (link.convert_gbs.value, link.convert_back_gbs.value if link.convert_back_gbs else None, link.runtime) == (8, 4, "a runtime")
    unknown = compare.link("gpu", device)
    assert (unknown.low, unknown.high) == pytest.approx((0.9, 3.5))
    assert (device.feeder("gpu"), device.feeder("cpu")) == (0.03, 0.0)
    peak = device.processor("cpu").cores.peak_gops["fp32"].value
    assert 0.9 * peak == pytest.approx(2 * RATE / 1e6, rel=0.01)


def test_without_fits_the_roofline_is_of_the_order_of_what_was_measured(tmp_path):
    kernels = [row for place in PLACES for row in measured(place)]
    predictor = LatencyPredictor(written(tmp_path, kernels))
    for style in STYLES:
        whole = sum(row.ms for row in kernels if (row.network, row.processor, row.core_set) == (style, "cpu", "1core"))
        assert whole / 4 < predictor.predict(draw(style, 0), "cpu").ms < whole * 4
