"""Folders of measurements: networks and tables that belong together."""

import gzip

import pytest

from predictors.errors import StretchError, UnknownNameError
from predictors.measurements.networks import LATENCIES, NETWORKS, SOURCE, load_measurements, write_networks
from predictors.measurements.tables import Latency
from tests.predictors.networks import small_resnet

HEADER = "device,network,processor,core_set,precision,runtime,ms,std_ms\n"
ROW = "phone,net,cpu,1large,fp32,TFLite 2.10,12.5,0.1\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / SOURCE).write_text('title = "t"\nurl = ""\ncommit = ""\nlicence = "MIT"\nnotes = "n"\n')
    write_networks(tmp_path / NETWORKS, [("net", "resnet", small_resnet())])
    (tmp_path / LATENCIES).write_text(HEADER + ROW)
    return tmp_path


def test_folder_of_measurements_is_read(folder):
    found = load_measurements(folder)
    assert found.graphs == {"net": small_resnet()}
    assert found.families == {"net": "resnet"}
    assert found.latencies == [Latency("phone", "net", "cpu", "1large", "fp32", "TFLite 2.10", 12.5, 0.1)]
    assert found.of("another").latencies == []


def test_time_of_a_network_that_is_not_there_is_refused(folder):
    (folder / LATENCIES).write_text(HEADER + ROW.replace("net,", "neet,"))
    with pytest.raises(StretchError, match="network `neet`") as caught:
        load_measurements(folder)
    assert "net" in caught.value.hint


def test_damaged_networks_are_refused(folder):
    packed = (folder / NETWORKS).read_bytes()
    for content, message in (
        (packed[: len(packed) // 2], "is no gzip file"),
        (b"{}", "is no gzip file"),
        (gzip.compress(b"{}\n"), "line 1"),
        (gzip.compress(2 * gzip.decompress(packed)), "line 2: the network `net` is there twice"),
        (gzip.compress(gzip.decompress(packed).replace(b'"conv"', b'"cone"')), "line 1: .*cone"),
    ):
        (folder / NETWORKS).write_bytes(content)
        with pytest.raises(StretchError, match=message):
            load_measurements(folder)


def test_measurements_that_are_not_there_are_refused(tmp_path):
    with pytest.raises(UnknownNameError):
        load_measurements("nobody")
    with pytest.raises(StretchError, match="is no folder of measurements"):
        load_measurements(tmp_path / "none")
