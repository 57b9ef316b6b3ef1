"""Phone latencies of TensorFlow Lite as shipped measurements: the source's tables and our graphs of its networks.

The tables are those of qed-usc/mobile-ml-benchmark (Li, Paolieri, Golubchik, EdgeSys 2024). The networks are
built by pytorchcv, which they were converted from, and go through our capture, as users' networks do.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from math import isqrt

from experiments.measurements.convert import family_of, mean_times, read_table, tables_folder, write_measurements
from predictors.fusion import Kernel, fuse
from predictors.graph import OpGraph
from predictors.measurements.networks import KERNELS, MEASUREMENT_FOLDER
from predictors.measurements.tables import KernelLatency, Latency, write_table

PRECISION = {"float": "fp32", "quant": "int8"}

#: TensorFlow Lite's GPU delegate computes in fp16 by default.
GPU_PRECISION = "fp16"

#: Name in the source, which does not state which of two builds of a release was used.
RUNTIME = "TensorFlow Lite 2.10"

#: Fusion rules of each phone's GPU.
GPU_BACKEND = {"pixel4": "tflite_gpu_adreno", "mi8se": "tflite_gpu_adreno"}

#: Networks that are left out because our capture does not read them.
LEFT_OUT = ("bagnet9",)

#: Families of related networks by their building blocks, whatever their names; they are left out together.
FAMILIES = {
    "mobilenet": r"(fd)?mobilenetb?_w",
    "mobilenetv2": r"mobilenetv2",
    "mobilenetv3": r"mobilenetv3",
    "nas": r"mnasnet|proxylessnas|spnasnet|fbnet",
    "efficientnet": r"efficientnet",
    "regnet": r"regnet",
    "resnet": r"(se)?(pre)?resnet|diracnet",
    "resnext": r"resnext",
    "hardnet": r"hardnet",
    "squeezenet": r"squeeze",
    "densenet": r"densenet|peleenet",
    "hrnet": r"hrnet",
}

#: Kinds of our kernels that an operator of the source's table may be.
KINDS = {
    "CONV_2D": ("conv", "conv1x1"),
    "CONV_2D_GROUP": ("grouped",),
    "DEPTHWISE_CONV_2D": ("depthwise",),
    "MEAN": ("reduce", "pool"),
    "CONCATENATION": ("copy",),
    "FULLY_CONNECTED": ("linear",),
    "MAX_POOL_2D": ("pool",),
    "AVERAGE_POOL_2D": ("pool", "reduce"),
}


def capture_network(name: str) -> OpGraph:
    """Return the graph of a network of pytorchcv at 224×224."""
    from pytorchcv.model_provider import get_model

    from stretch.network.capture import capture

    return capture(get_model(name).eval(), (1, 3, 224, 224)).graph


def latencies(rows: Iterable[dict[str, str]]) -> Iterator[Latency]:
    """Yield the times of whole networks."""
    for row in rows:
        for device, cores, precision, *times in mean_times(row):
            place = ("gpu", "all", GPU_PRECISION) if cores == "gpu" else ("cpu", cores, PRECISION[precision])
            yield Latency(device, row["model"], *place, RUNTIME, *times)


def matches(row: dict[str, str], shape: dict[str, str], kernel: Kernel) -> bool:
    """Return whether a row of the source's table matches a kernel of ours by kind, channels, window and size."""
    cost = kernel.cost
    if cost.kind not in KINDS[row["operation"]] or (cost.kind == "copy") != (row["operation"] == "CONCATENATION"):
        return False
    if cost.kind == "copy":
        return cost.variant == "concat"
    channels = int(shape["Input_channel"])
    if cost.kind == "linear":
        return channels == cost.in_channels
    if cost.kind in ("pool", "reduce"):
        # Windows with the converter's padding read up to three more rows.
        return channels == cost.groups and 0 <= int(shape["Input_shape"]) ** 2 - cost.reads // cost.groups <= 3 * (2 * 112 + 3)
    same = (
        channels == cost.in_channels * cost.groups
        and int(shape["Output_shape"]) == isqrt(cost.pixels)
        and int(shape["Kernel"]) ** 2 == cost.taps
    )
    return same and (cost.kind == "depthwise" or int(shape["Filter"]) == cost.out_channels * cost.groups)


def paired(rows: list[dict[str, str]], kernels: list[Kernel]) -> Iterator[tuple[dict[str, str], Kernel]]:
    """Yield the rows of one network with their kernels, in order; rows without a kernel are left out."""
    left = [(row, ast.literal_eval(row["feature"])) for row in rows]
    for kernel in kernels:
        first = next((pair for pair in left if matches(*pair, kernel)), None)
        if first:
            left.remove(first)
            yield first[0], kernel


def implementation(kernel: str) -> str:
    """Return the implementation in a kernel's name, without the numbers of its operators."""
    return re.sub(r"_?\d+$", "", kernel.split("_linked_")[0])


def kernel_latencies(rows: list[dict[str, str]], graphs: dict[str, OpGraph]) -> Iterator[KernelLatency]:
    """Yield the times of single kernels on the GPUs; they are in µs in the source."""
    devices = [column.partition("|")[0] for column in rows[0] if column.endswith("|gpu|float")]
    of: dict[str, list[dict[str, str]]] = defaultdict(list)
    for row in rows:
        of[row["model"]].append(row)
    for device in devices:
        for network, graph in graphs.items():
            for row, kernel in paired(of[network], fuse(graph, GPU_BACKEND.get(device, "tflite_gpu"))):
                name, value = row[f"{device}|gpu|kernel"], row[f"{device}|gpu|float"]
                if value and float(value) > 0:
                    place, ms = ("gpu", "all", GPU_PRECISION, RUNTIME), round(float(value) / 1e3, 6)
                    yield KernelLatency(device, network, *place, name, implementation(name), *kernel.cost, ms)


def main() -> None:
    """Write the folder of measurements."""
    folder = tables_folder(__doc__, "tflite_cnn_e2e.csv, tflite_cnn_ops_gpu.csv and LICENSE of the source")
    whole, single = (
        [row for row in read_table(folder / name) if row["model"] not in LEFT_OUT]
        for name in ("tflite_cnn_e2e.csv", "tflite_cnn_ops_gpu.csv")
    )
    graphs = {row["model"]: capture_network(row["model"]) for row in whole}
    networks = [(name, family_of(name, FAMILIES), graph) for name, graph in graphs.items()]
    write_measurements("phones", networks, list(latencies(whole)), folder / "LICENSE")
    write_table(MEASUREMENT_FOLDER / "phones" / f"{KERNELS}.gz", list(kernel_latencies(single, graphs)))


if __name__ == "__main__":
    main()
