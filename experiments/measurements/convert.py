"""Functions of the programs that turn public tables into shipped measurements."""

from collections.abc import Sequence
from pathlib import Path
from shutil import copyfile
from typing import Any

from predictors.errors import StretchError
from predictors.graph import OpGraph
from predictors.measurements.networks import LATENCIES, MEASUREMENT_FOLDER, NETWORKS, write_networks
from predictors.measurements.tables import Latency, write_table


def graph_of(module: Any, shape: tuple[int, ...], name: str) -> OpGraph:
    """Graph of a module as `stretch predict` captures it."""
    from stretch.network.capture.exported import capture_exported
    from stretch.network.capture.trace import capture_traced

    try:
        return capture_traced(module.eval(), shape, name).graph
    except StretchError:
        return capture_exported(module.eval(), shape, name)


def write_measurements(name: str, networks: Sequence[tuple[str, str, OpGraph]], latencies: list[Latency], licence: Path) -> None:
    """Write the networks that were measured, the table and the licence of a set; its source is written by hand.

    Args:
        name: Of the folder.
        networks: Name, family and graph of each network.
        latencies: Rows in any order.
        licence: File to copy.
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
