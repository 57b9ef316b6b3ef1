"""Latencies of boards with ncnn as shipped measurements: the source's tables and the networks that it ran.

The tables are those of Tencent/ncnn's `benchmark/README.md`, the networks its own files `benchmark/*.param`.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from experiments.measurements.convert import family_of, read_table, tables_folder, write_measurements
from predictors.measurements.tables import Latency
from stretch.tools.ncnn.reader import read_ncnn

RUNTIME = "ncnn"

#: The second table has every board of the source, but lacks one int8 network of the first.
TABLES = ("ncnn_boards.csv", "ncnn_all_boards.csv")

#: Sizes that ncnn's `benchncnn.cpp` gives to networks whose files state none.
INPUTS = {"FastestDet": (1, 3, 352, 352), "vision_transformer": (1, 3, 384, 384)}

#: Families of related networks by their building blocks, which are left out together.
FAMILIES = {
    "squeezenet": r"squeezenet",
    "mobilenet": r"mobilenet(_ssd|_yolo)?(_int8)?$",
    "inverted": r"mobilenet|mnasnet|proxylessnasnet",
    "efficientnet": r"efficientnet",
    "shufflenet": r"shufflenet|nanodet|yolo-fastestv2|FastestDet",
    "googlenet": r"googlenet",
    "resnet": r"resnet",
    "alexnet": r"alexnet",
    "vgg": r"vgg",
    "darknet": r"yolov4",
    "yolo_fastest": r"yolo-fastest-1",
    "blazeface": r"blazeface",
    "regnet": r"regnet",
    "transformer": r"vision_transformer",
}


class Run(NamedTuple):
    """Device of a table of the source."""

    device: str  # Our name of the board.
    core_set: str  # Our name of the cores, with numbers of threads and kinds of cores.
    precision: str  # Precision of networks that are not int8.
    processor: str = "cpu"  # On a GPU, ncnn computes int8 networks on the CPU, so these rows are left out.


#: Runs by the beginning of the board's name, threads, `powersave` and `gpu_device`. ncnn computes in fp16 if cores can, unless
#: its build or version does not: if MobileNet, which Winograd does not speed up, exceeds the cores' fp32 peak, it was fp16.
#: Eight threads on the Snapdragon 888 had the four large cores (`powersave` 2). Other tables of the source are left out: it does not
#: state the cores of their threads, no profile needs them, or they are broken (a GPU of the Station-M3 that takes 0.5 ms for VGG-16).
RUNS = {
    ("Raspberry Pi 4", 1, 0, -1): Run("raspberrypi4", "1large", "fp32"),
    ("Raspberry Pi 4", 4, 0, -1): Run("raspberrypi4", "4large", "fp32"),
    ("Raspberry Pi 5 Broadcom BCM2712, Cortex", 1, 0, -1): Run("raspberrypi5", "1large", "fp16"),
    ("Raspberry Pi 5 Broadcom BCM2712, Cortex", 4, 0, -1): Run("raspberrypi5", "4large", "fp16"),
    ("Rockchip RK3399", 1, 2, -1): Run("rk3399", "1large", "fp32"),
    ("Rockchip RK3399", 2, 2, -1): Run("rk3399", "2large", "fp32"),
    ("Rockchip RK3399", 1, 1, -1): Run("rk3399", "1small", "fp32"),
    ("Rockchip RK3399", 4, 1, -1): Run("rk3399", "4small", "fp32"),
    ("OrangePi4 LTS", 2, 2, -1): Run("orangepi4lts", "2large", "fp32"),
    ("OrangePi4 LTS", 4, 1, -1): Run("orangepi4lts", "4small", "fp32"),
    ("OrangePi4 LTS", 6, 0, -1): Run("orangepi4lts", "2large4small", "fp32"),
    ("Rockchip RK3588 (Cortex", 1, 2, -1): Run("rk3588", "1large", "fp32"),
    ("Rockchip RK3588 (Cortex", 4, 2, -1): Run("rk3588", "4large", "fp32"),
    ("Rockchip RK3588 (Cortex", 1, 1, -1): Run("rk3588", "1small", "fp32"),
    ("Rockchip RK3588 (Cortex", 4, 1, -1): Run("rk3588", "4small", "fp32"),
    ("Rockchip RK3588 (Quad", 1, 0, -1): Run("rk3588-fp16", "1large", "fp16"),
    ("Rockchip RK3588 (Quad", 4, 2, -1): Run("rk3588-fp16", "4large", "fp16"),
    ("Rockchip RK3588 (Quad", 8, 0, -1): Run("rk3588-fp16", "4large4small", "fp16"),
    ("OrangePi5 Plus", 4, 2, -1): Run("orangepi5plus", "4large", "fp16"),
    ("Qualcomm SM8150-AC", 1, 2, -1): Run("sd855plus", "1large", "fp16"),
    ("Qualcomm SM8150-AC", 4, 2, -1): Run("sd855plus", "1large3med", "fp16"),
    ("Radxa Orion O6", 1, 2, -1): Run("orion-o6", "1large", "fp16"),
    ("Khadas VIM3", 1, 2, -1): Run("a311d", "1large", "fp32"),
    ("Khadas VIM3", 4, 2, -1): Run("a311d", "4large", "fp32"),
    ("Intel Celeron N5105", 1, 0, -1): Run("n5105", "1large", "fp32"),
    ("Intel Celeron N5105", 4, 0, -1): Run("n5105", "4large", "fp32"),
    ("Qualcomm Snapdragon 888", 8, 2, -1): Run("sd888", "1large3med", "fp16"),
    ("Qualcomm Snapdragon X Elite", 12, 0, -1): Run("x-elite", "12large", "fp16"),
    ("MediaTek Dimensity 9300", 1, 2, -1): Run("d9300", "1large", "fp16"),
    ("MediaTek Dimensity 9300", 4, 2, -1): Run("d9300", "1large3med", "fp16"),
    ("MediaTek Dimensity 9300", 4, 1, -1): Run("d9300", "4small", "fp16"),
    ("MediaTek Dimensity 9300", 8, 0, -1): Run("d9300", "1large3med4small", "fp16"),
    ("Rockchip RK3399", 1, 2, 0): Run("rk3399", "all", "fp16", "gpu"),
    ("Rockchip RK3588 (Cortex", 1, 2, 0): Run("rk3588", "all", "fp16", "gpu"),
    ("Khadas VIM3", 6, 2, 0): Run("a311d", "all", "fp16", "gpu"),
    ("Intel Celeron N5105", 1, 0, 0): Run("n5105", "all", "fp16", "gpu"),
    ("Qualcomm Snapdragon 888", 8, 2, 0): Run("sd888", "all", "fp16", "gpu"),
    ("Qualcomm Snapdragon X Elite", 1, 0, 0): Run("x-elite", "all", "fp16", "gpu"),
    ("MediaTek Dimensity 9300", 1, 2, 0): Run("d9300", "all", "fp16", "gpu"),
}

#: Networks whose times on GPUs are not those of a GPU: 16 `Reduction` layers of the first and the attention of the second lacked
#: Vulkan versions at the time, so that tensors went to the CPU and back.
NOT_ON_GPUS = ("efficientnetv2_b0", "vision_transformer")


def run_of(row: dict[str, str]) -> Run | None:
    """Return the device of a row; None if it is not stated."""
    key = [int(row[name]) for name in ("num_threads", "powersave", "gpu_device")]
    return next((run for (start, *rest), run in RUNS.items() if row["board"].startswith(start) and rest == key), None)


def latencies(rows: Iterable[dict[str, str]]) -> Iterator[Latency]:
    """Yield the times of networks: the minimum of the runs, because some means include an outlier of ten times the minimum."""
    for row in rows:
        run = run_of(row)
        if run is None or (run.processor == "gpu" and (row["model"].endswith("_int8") or row["model"] in NOT_ON_GPUS)):
            continue
        precision = "int8" if row["model"].endswith("_int8") else run.precision
        yield Latency(run.device, row["model"], run.processor, run.core_set, precision, RUNTIME, float(row["min_ms"]))


def main() -> None:
    """Write the folder of measurements."""
    folder = tables_folder(__doc__, f"{', '.join(TABLES)}, LICENSE and models/*.param")
    files = sorted((folder / "models").glob("*.param"))
    networks = [(file.stem, family_of(file.stem, FAMILIES), read_ncnn(file, INPUTS.get(file.stem))) for file in files]
    rows = [row for name in TABLES for row in read_table(folder / name)]
    # The tables share most rows, with equal digits.
    write_measurements("boards", networks, list(dict.fromkeys(latencies(rows))), folder / "LICENSE")


if __name__ == "__main__":
    main()
