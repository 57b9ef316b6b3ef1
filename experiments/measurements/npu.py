"""Latencies of Qualcomm's NPUs as shipped measurements: the source's table and our graphs of its networks.

The table was read from the files `perf.yaml` of quic/ai-hub-models v0.46.1. The networks are built by torchvision and
timm and go through our capture, as users' networks do; those that cannot be traced go through torch.export.
"""

from collections.abc import Iterable, Iterator

from experiments.measurements.convert import graph_of, read_table, tables_folder, write_measurements
from predictors.graph import OpGraph
from predictors.measurements.tables import Latency

#: Our names of the source's devices. The SA8775P ADP is left out because it was measured in two clock states.
DEVICES = {
    "Samsung Galaxy S24": "s24",
    "Samsung Galaxy S25": "s25",
    "Snapdragon 8 Elite Gen 5 QRD": "sm8850",
    "Snapdragon 7 Gen 4 QRD": "sm7750",
    "QCS8550 (Proxy)": "qcs8550",
    "QCS8450 (Proxy)": "qcs8450",
    "QCS8275 (Proxy)": "qcs8275",
    "SA8295P ADP": "sa8295p",
    "Dragonwing IQ-9075 EVK": "iq9075",
    "Dragonwing Q-6690 MTP": "q6690",
    "Dragonwing RB3 Gen 2 Vision Kit": "rb3gen2",
    "Snapdragon X Elite CRD": "x-elite",
}

PRECISION = {"float": "fp16", "w8a8": "int8", "w8a16": "w8a16"}

RUNTIME = {
    "qnn_dlc": "QAIRT 2.42",
    "tflite": "TensorFlow Lite 2.17 with QAIRT 2.42",
    "onnx": "ONNX Runtime 1.23 with QAIRT 2.37",
}

#: Networks that are left out: the LSTMs of sequencer2d_s are unrolled into thousands of operators.
LEFT_OUT = ("sequencer2d_s",)


def latencies(rows: Iterable[dict[str, str]]) -> Iterator[Latency]:
    """Yield the times of networks that ran with every layer on the NPU."""
    for row in rows:
        elsewhere = int(row["gpu_layers"]) + int(row["cpu_layers"])
        known = row["device"] in DEVICES and row["precision"] in PRECISION and row["runtime"] in RUNTIME
        if row["unit"] != "NPU" or elsewhere or not known or row["network"] in LEFT_OUT:
            continue
        yield Latency(
            DEVICES[row["device"]], row["network"], "npu", "all", PRECISION[row["precision"]], RUNTIME[row["runtime"]], float(row["ms"])
        )


def capture_network(row: dict[str, str]) -> OpGraph:
    """Return the graph of a network of torchvision or timm, without weights."""
    import timm
    import torchvision

    name = row["library_name"]
    if row["library"] == "timm":
        module = timm.create_model(name)
    else:
        folder, _, model = name.rpartition(".")
        models = getattr(torchvision.models, folder) if folder else torchvision.models
        backbone = {"weights_backbone": None} if folder else {}
        # otherwise, drawing weights takes a minute
        drawn = {"init_weights": False} if model in ("inception_v3", "googlenet") else {}
        module = getattr(models, model)(weights=None, **backbone, **drawn)
    return graph_of(module, tuple(int(n) for n in row["input"].split("x")), row["network"])


def main() -> None:
    """Write the folder of measurements."""
    folder = tables_folder(__doc__, "npu_latency.csv, networks.csv and LICENSE")
    networks = []
    for row in read_table(folder / "networks.csv"):
        if row["network"] not in LEFT_OUT:
            graph = capture_network(row)
            if graph.macs != int(row["macs"]):
                raise SystemExit(f"{row['network']} has {graph.macs} multiply-accumulates, the table says {row['macs']}")
            networks.append((row["network"], row["family"], graph))
    write_measurements("npu", networks, list(latencies(read_table(folder / "npu_latency.csv"))), folder / "LICENSE")


if __name__ == "__main__":
    main()
