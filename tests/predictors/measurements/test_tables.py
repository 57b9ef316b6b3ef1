import gzip
from pathlib import Path

import pytest

from predictors.errors import StretchError, UnknownNameError
from predictors.measurements.benchncnn import NAMES, read_benchncnn
from predictors.measurements.litert import read_op_profile
from predictors.measurements.networks import LATENCIES, NETWORKS, SOURCE, load_measurements, write_networks
from predictors.measurements.tables import KernelLatency, Latency, read_table, write_table
from tests.predictors.networks import small_resnet

HEADER = "device,network,processor,core_set,precision,runtime,ms,std_ms\n"
ROW = "phone,net,cpu,1large,fp32,TFLite 2.10,12.5,0.1\n"


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def latencies(path):
    return read_table(path, Latency)


def test_tables_are_read_back_as_they_were_written(tmp_path):
    rows = [Latency("d", "n", "cpu", "1large", "fp32", "r", 0.1 + 0.2, None), Latency("d", "n", "cpu", "1large", "int8", "r", 1e-3, 2.0)]
    write_table(tmp_path / "t.csv", rows)
    assert latencies(tmp_path / "t.csv") == rows
    kernel = KernelLatency("d", "n", "gpu", "all", "fp16", "r", "conv_0", "", "conv", 3, 8, 1, 9, 100, 300, 800, 216, 4, "winograd", 0.25)
    write_table(tmp_path / "k.csv", [kernel])
    assert read_table(tmp_path / "k.csv", KernelLatency) == [kernel]
    assert (kernel.cost.variant, kernel.cost.taps) == ("winograd", 9)


def test_damaged_networks_and_missing_measurements_are_refused(tmp_path):
    folder = tmp_path
    (folder / SOURCE).write_text('title = "t"\nurl = ""\ncommit = ""\nlicence = "MIT"\nnotes = "n"\n')
    write_networks(folder / NETWORKS, [("net", "resnet", small_resnet())])
    (folder / LATENCIES).write_text(HEADER + ROW)
    packed = (folder / NETWORKS).read_bytes()
    for content, message in (
        (packed[: len(packed) // 2], "gzip"),
        (b"{}", "gzip"),
        (packed[:20] + b"\xff" * 20 + packed[40:], "gzip"),
        (gzip.compress(b"{}\n"), "line 1"),
        (gzip.compress(2 * gzip.decompress(packed)), "line 2: .*`net`"),
        (gzip.compress(gzip.decompress(packed).replace(b'"conv"', b'"cone"')), "line 1: .*cone"),
        (gzip.compress(gzip.decompress(packed).replace(b'"net"', b'"other"')), "network `net`"),
    ):
        (folder / NETWORKS).write_bytes(content)
        with pytest.raises(StretchError, match=message):
            load_measurements(folder)
    write_networks(folder / NETWORKS, [("net", "resnet", small_resnet())])
    (folder / SOURCE).write_text('titel = "t"\n')
    with pytest.raises(StretchError, match="does not say where measurements come from"):
        load_measurements(folder)
    for name, error in (("nobody", UnknownNameError), (folder / "none", StretchError)):
        with pytest.raises(error, match="measurements"):
            load_measurements(name)


#: Output of `benchncnn`.
OUTPUT = """loop_count = 8
num_threads = 1
powersave = 2
gpu_device = -1
cooling_down = 1
          squeezenet  min =    2.61  max =    2.75  avg =    2.66
     squeezenet_int8  min =    2.10  max =    2.30  avg =    2.20
            resnet18  min =    9.10  max =    9.90  avg =    9.40
"""


@pytest.mark.torch
def test_every_network_name_of_benchncnn_maps_to_a_torchvision_model():
    import torchvision

    assert set(NAMES.values()) <= set(torchvision.models.list_models())


PROFILE_HEADER = "node type, first, avg_ms, %, cdf%, mem KB, times called, name"
PROFILE = f"""Number of nodes executed: 1
============================== Run Order ==============================
{PROFILE_HEADER}
ModifyGraphWithDelegate, 1.5, 1.5, 100%, 100%, 0, 1, ModifyGraphWithDelegate/0

============================== Summary by node type ==============================
[Node type], count
============================== Run Order ==============================
{PROFILE_HEADER}
CONV_2D, 1.2, 1.25, 50%, 50%, 0, 1, [conv1]:0
DEPTHWISE_CONV_2D, 0.7, 0.75, 30%, 80%, 0, 1, [conv2]:1
SOFTMAX, 0.1, 0.25, 10%, 90%, 0, 2, [prob]:2

============================== Top by Computation Time ==============================
{PROFILE_HEADER}
CONV_2D, 1.2, 1.25, 50%, 50%, 0, 1, [conv1]:0
"""


def test_operator_profile_is_read_in_run_order_and_benchncnn_output_with_precisions_and_settings(tmp_path):
    op_profile = read_op_profile(written(tmp_path / "profile.csv", PROFILE))
    rows = [("CONV_2D", "[conv1]:0"), ("DEPTHWISE_CONV_2D", "[conv2]:1"), ("SOFTMAX", "[prob]:2")]
    assert [(item.kind, item.name) for item in op_profile] == rows
    result, settings = read_benchncnn(written(tmp_path / "bench.txt", OUTPUT))
    rows = [("squeezenet", "fp16", 2.66), ("squeezenet", "int8", 2.20), ("resnet18", "fp16", 9.40)]
    assert [(item.name, item.precision, item.avg_ms) for item in result] == rows
    assert settings == {"loop_count": 8, "num_threads": 1, "powersave": 2, "gpu_device": -1}


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (latencies, HEADER, "no measurement"),
        (latencies, "", "column `device`"),
        (latencies, HEADER.replace("ms,", "millis,", 1) + ROW, "line 1: `millis`"),
        (latencies, HEADER.replace("processor,", "", 1) + ROW, "line 1: .*`processor`"),
        (latencies, HEADER.replace("std_ms", "std_ms,ms") + ROW, "line 1: .*twice"),
        (latencies, HEADER + "phone,net,cpu\n", "line 2: .*3 fields"),
        *((latencies, HEADER + ROW.replace("12.5", ms), "line 2: .*ms") for ms in ("fast", "", "-1", "1e12", "nan")),
        (latencies, HEADER + ROW.replace("phone", ""), "line 2: `device` is empty"),
        (latencies, HEADER + ROW + ROW.replace("12.5", "13"), "line 3: .* line 2"),
        (read_benchncnn, OUTPUT.replace("max =    9.90", "max =    9.00"), "line 8: .*max 9 ms"),
        (read_benchncnn, OUTPUT.replace("min =    9.10", "min =   -9.10"), "line 8: min -9.1"),
        (read_benchncnn, OUTPUT.replace("avg =    9.40", "avg =     nan"), "line 8: .*avg nan"),
        (read_benchncnn, OUTPUT.splitlines()[-1].replace("avg =    9.40", "avg =    9,40"), "no line of a network"),
        (read_benchncnn, OUTPUT.replace("avg =    9.40", "avg =    fast"), "line 8: `fast`"),
        (read_benchncnn, OUTPUT.replace("            resnet18", "     squeezenet_int8"), "line 8: .*twice"),
        (read_benchncnn, "hello\n", "no line of a network"),
        (read_op_profile, PROFILE.replace("Run Order", "Run"), "block `Run Order`"),
        (read_op_profile, PROFILE.replace("avg_ms", "avg_us"), "line 9: .*`avg_ms`"),
        *((read_op_profile, PROFILE.replace("0.75, 30%", f"{ms}, 30%"), f"line 11: `avg_ms` is `?{ms}") for ms in ("fast", "nan", "-1")),
        (read_op_profile, PROFILE.replace("0, 1, [conv2]:1", "0, [conv2]:1"), "line 11: .*7 fields"),
        (read_op_profile, f"===== Run Order =====\n{PROFILE_HEADER}\n", "no operator"),
        (read_op_profile, "\udcff\udcfe\0 Run Order", "not text"),
    ],
    ids=lambda text: ascii(text[-40:].strip()) if isinstance(text, str) else text.__name__,
)
def test_invalid_table_is_refused_with_line_and_field(tmp_path, read, text, message):
    (tmp_path / "t.csv").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(StretchError, match="(?s)" + message):
        read(tmp_path / "t.csv")
