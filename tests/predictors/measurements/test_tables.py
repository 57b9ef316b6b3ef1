"""Files of measurements."""

import gzip

import pytest

from predictors.errors import StretchError, UnknownNameError
from predictors.measurements.networks import LATENCIES, NETWORKS, SOURCE, load_measurements, write_networks
from predictors.measurements.tables import KernelLatency, Latency, read_table, write_table
from tests.predictors.networks import small_resnet

HEADER = "device,network,processor,core_set,precision,runtime,ms,std_ms\n"
ROW = "phone,net,cpu,1large,fp32,TFLite 2.10,12.5,0.1\n"


def test_tables_are_read_back_as_they_were_written(tmp_path):
    rows = [Latency("d", "n", "cpu", "1large", "fp32", "r", 0.1 + 0.2, None), Latency("d", "n", "cpu", "1large", "int8", "r", 1e-3, 2.0)]
    write_table(tmp_path / "t.csv", rows)
    assert read_table(tmp_path / "t.csv", Latency) == rows
    kernel = KernelLatency("d", "n", "gpu", "all", "fp16", "r", "conv_0", "", "conv", 3, 8, 1, 9, 100, 300, 800, 216, 4, "winograd", 0.25)
    write_table(tmp_path / "k.csv", [kernel])
    assert read_table(tmp_path / "k.csv", KernelLatency) == [kernel]
    assert kernel.cost.variant == "winograd"
    assert kernel.cost.taps == 9


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEADER, "has a header and no measurement"),
        ("", "the column `device` is missing"),
        (HEADER.replace("ms,", "millis,", 1) + ROW, "line 1: `millis` is no column"),
        (HEADER.replace("processor,", "", 1) + ROW, "line 1: the column `processor` is missing"),
        (HEADER.replace("std_ms", "std_ms,ms") + ROW, "line 1: a column is there twice"),
        (HEADER + "phone,net,cpu\n", "line 2: it has 3 fields, the header 8"),
        (HEADER + ROW.replace("12.5", "fast"), "line 2: .*ms"),
        (HEADER + ROW.replace("12.5", ""), "line 2: `ms` is empty"),
        (HEADER + ROW.replace("12.5", "-1"), "line 2: .*ms"),
        (HEADER + ROW.replace("12.5", "1e12"), "line 2: .*ms"),
        (HEADER + ROW.replace("12.5", "nan"), "line 2: .*ms"),
        (HEADER + ROW.replace("phone", ""), "line 2: `device` is empty"),
        (HEADER + ROW + ROW.replace("12.5", "13"), "line 3: the same measurement stands in line 2"),
    ],
)
def test_bad_table_is_refused_with_line_and_field(tmp_path, text, message):
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(StretchError, match=message):
        read_table(path, Latency)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / SOURCE).write_text('title = "t"\nurl = ""\ncommit = ""\nlicence = "MIT"\nnotes = "n"\n')
    write_networks(tmp_path / NETWORKS, [("net", "resnet", small_resnet())])
    (tmp_path / LATENCIES).write_text(HEADER + ROW)
    return tmp_path


def test_folder_of_measurements_is_read(folder):
    measurements = load_measurements(folder)
    assert measurements.graphs == {"net": small_resnet()}
    assert measurements.families == {"net": "resnet"}
    assert measurements.latencies == [Latency("phone", "net", "cpu", "1large", "fp32", "TFLite 2.10", 12.5, 0.1)]
    assert measurements.of("another").latencies == []


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
