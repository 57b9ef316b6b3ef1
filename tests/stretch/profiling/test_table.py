import os
import signal
import subprocess
import sys

import pytest

from predictors.errors import StretchError
from predictors.fusion import fuse
from predictors.measurements.networks import Source, load_measurements
from predictors.measurements.tables import KernelLatency, Latency
from stretch.profiling.styles import draw
from stretch.profiling.table import Table

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


def test_where_nothing_was_measured_nothing_is_left_to_go_on_with(tmp_path):
    filled(tmp_path / "m", seeds=()).save()
    assert not list(tmp_path.iterdir())
    assert Table.open(tmp_path / "m", SOURCE, resume=False).latencies == []


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
from tests.stretch.profiling.test_table import filled
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
    found = load_measurements(tmp_path / "m")
    assert len(found.latencies) == 6
    assert sorted(path.name for path in (tmp_path / "m").iterdir()) == ["kernels.csv", "latencies.csv", "networks.jsonl.gz", "source.toml"]
