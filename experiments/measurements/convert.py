"""Functions of the programs that turn public tables into shipped measurements."""

import argparse
import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from shutil import copyfile
from typing import Any

from predictors.errors import StretchError
from predictors.graph import OpGraph
from predictors.measurements.networks import LATENCIES, MEASUREMENT_FOLDER, NETWORKS, write_networks
from predictors.measurements.tables import Latency, write_table


def tables_folder(description: str | None, files: str) -> Path:
    """Return the folder of tables from the command line.

    Args:
        description: Description of the program.
        files: Names of the files that the folder must have.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("tables", type=Path, help=f"folder with {files}")
    return parser.parse_args().tables


def read_table(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table."""
    return list(csv.DictReader(path.read_text().splitlines()))


def family_of(network: str, families: Mapping[str, str]) -> str:
    """Return the family of a network, the first whose pattern matches its name."""
    return next(name for name, pattern in families.items() if re.match(pattern, network))


def mean_times(row: Mapping[str, str]) -> Iterator[tuple[str, str, str, float, float]]:
    """Yield device, cores, precision, mean and standard deviation in ms for each column ``DEVICE|cores|precision|mean`` (µs) of a row."""
    for column, value in row.items():
        if column.endswith("|mean") and value:
            device, cores, precision, _ = column.split("|")
            deviation = float(row[column.removesuffix("mean") + "std"])
            yield device, cores, precision, round(float(value) / 1e3, 6), round(deviation / 1e3, 6)


def graph_of(module: Any, shape: tuple[int, ...], name: str) -> OpGraph:
    """Return the graph of a module as `stretch predict` captures it."""
    from stretch.network.capture.exported import capture_exported
    from stretch.network.capture.trace import capture_traced

    try:
        return capture_traced(module.eval(), shape, name).graph
    except StretchError:
        return capture_exported(module.eval(), shape, name)


def write_measurements(name: str, networks: Sequence[tuple[str, str, OpGraph]], latencies: list[Latency], licence: Path) -> None:
    """Write the measured networks, the table and the licence of a set; its source is written by hand.

    Args:
        name: Name of the folder.
        networks: Name, family and graph of each network.
        latencies: Rows in any order.
        licence: File of the licence, which is copied.
    """
    folder = MEASUREMENT_FOLDER / name
    folder.mkdir(exist_ok=True)
    measured = {row.network for row in latencies}
    write_networks(folder / NETWORKS, [network for network in networks if network[0] in measured])
    write_table(
        folder / LATENCIES,
        sorted(latencies, key=lambda row: (row.device, row.processor, row.core_set, row.precision, row.runtime, row.network)),
    )
    copyfile(licence, folder / "LICENSE")
