"""Tables of measurements are kept, gone on with, and brought in from others."""

import os
import signal
import subprocess
import sys

import pytest

from predictors.errors import StretchError, UsageError
from predictors.fusion import fuse
from predictors.measurements.networks import Source, load_measurements
from predictors.measurements.tables import KernelLatency, Latency
from stretch.tools.profiling.styles import draw
from stretch.tools.profiling.writing import Table, Where, ingest
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
    table = filled(tmp_path / "n")
    table.folder = tmp_path / "m" / "inside"
    with pytest.raises(StretchError, match="cannot make the folder"):
        table.save()


def test_ctrl_c_while_saving_leaves_whole_files(tmp_path):
    """A process that saves without end is interrupted: what lies there can be read, and nothing else lies there."""
    code = f"""
import sys
from pathlib import Path
from tests.stretch.tools.profiling.test_table import filled
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


@pytest.fixture
def bench(tmp_path):
    path = tmp_path / "bench.txt"
    path.write_text(OUTPUT)
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


def test_networks_of_benchncnn_are_those_of_the_same_architecture(bench, tmp_path):
    rows = ingest(bench, None, WHERE, tmp_path, capture)
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
