"""Tables of measurements: what is written is read back, and what is wrong is told with file, line and field."""

import pytest

from predictors.errors import StretchError
from predictors.measurements.tables import KernelLatency, Latency, read_table, write_table

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
        (HEADER.replace(",std_ms", ",ms") + ROW, "line 1: the column `std_ms` is missing"),
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
