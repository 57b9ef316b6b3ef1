"""A folder of measurements: the measured networks as operator graphs, and the tables of their times."""

import gzip
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Annotated

import msgspec

from predictors.errors import StretchError, UnknownNameError
from predictors.faults import nearest
from predictors.files import read_bytes, read_toml
from predictors.graph import OpGraph
from predictors.measurements.tables import KernelLatency, Latency, read_table

MEASUREMENT_FOLDER = Path(__file__).parent

NETWORKS, LATENCIES, KERNELS, SOURCE = "networks.jsonl.gz", "latencies.csv", "kernels.csv", "source.toml"

#: Maximum size of the networks of one folder in bytes, packed and unpacked.
MAX_PACKED, MAX_UNPACKED = 1 << 26, 1 << 29

_Text = Annotated[str, msgspec.Meta(min_length=1)]


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Source of measurements."""

    title: _Text  # Title of the table.
    url: str  # URL of the publication; empty for one's own measurements.
    commit: str  # Version of the publication.
    licence: _Text  # Licence by its SPDX name.
    notes: _Text  # Meaning of the numbers, and omissions.


class _NetworkLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line of the file of networks."""

    network: _Text
    family: _Text
    graph: msgspec.Raw


@dataclass(frozen=True)
class Measurements:
    """A table of measured networks."""

    source: Source  # Source of the measurements.
    graphs: dict[str, OpGraph]  # Networks by name.
    families: dict[str, str]  # Family of each network; the networks of a family are left out together when a fit is evaluated.
    latencies: list[Latency]  # Times of whole networks.
    kernels: list[KernelLatency] = field(default_factory=list)  # Times of single kernels.

    def of(self, device: str) -> "Measurements":
        """Return the measurements on one device."""
        return Measurements(
            self.source,
            self.graphs,
            self.families,
            [row for row in self.latencies if row.device == device],
            [row for row in self.kernels if row.device == device],
        )


def list_measurements() -> list[str]:
    """Return the names of the shipped measurements."""
    return sorted(path.parent.name for path in MEASUREMENT_FOLDER.glob(f"*/{SOURCE}"))


def load_measurements(folder: str | Path) -> Measurements:
    """Read and check a folder of measurements.

    Args:
        folder: Name of shipped measurements, or path of a folder with `SOURCE`, `NETWORKS`,
            `LATENCIES` and, if kernels were measured, `KERNELS`, which may be packed as ``.gz``.
    """
    path = Path(folder)
    if not path.is_dir():
        if isinstance(folder, Path) or "/" in folder:
            raise StretchError(f"{path} is no folder of measurements", f"it has {SOURCE}, {NETWORKS} and {LATENCIES}")
        if folder not in list_measurements():
            raise UnknownNameError.among("measurements", folder, list_measurements())
        path = MEASUREMENT_FOLDER / folder
    try:
        source = msgspec.convert(read_toml(path / SOURCE, "source of measurements"), Source)
    except msgspec.ValidationError as error:
        raise StretchError(f"{path / SOURCE} does not say where measurements come from: {error}") from error
    graphs, families = _read_networks(path / NETWORKS)
    latencies = read_table(path / LATENCIES, Latency)
    single = next((file for file in (path / KERNELS, path / f"{KERNELS}.gz") if file.exists()), None)
    kernels = read_table(single, KernelLatency) if single else []
    for name in [*(row.network for row in latencies), *(row.network for row in kernels)]:
        if name not in graphs:
            raise StretchError(f"{path} has times of the network `{name}`, which {NETWORKS} does not have", nearest(name, graphs))
    return Measurements(source, graphs, families, latencies, kernels)


def write_networks(path: Path, networks: Iterable[tuple[str, str, OpGraph]]) -> None:
    """Write networks to a file; the same networks give the same bytes."""
    lines = [
        msgspec.json.encode({"network": name, "family": family, "graph": msgspec.Raw(graph.to_json())}) for name, family, graph in networks
    ]
    path.write_bytes(gzip.compress(b"\n".join(lines) + b"\n", 9, mtime=0))


def _read_networks(path: Path) -> tuple[dict[str, OpGraph], dict[str, str]]:
    packed = read_bytes(path, "file of networks", MAX_PACKED)
    try:
        with gzip.open(BytesIO(packed)) as stream:
            text = stream.read(MAX_UNPACKED + 1)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise StretchError(f"{path} is no gzip file: {error}") from error
    if len(text) > MAX_UNPACKED:
        raise StretchError(f"{path} unpacks {len(packed)} bytes to more than {MAX_UNPACKED}")
    graphs: dict[str, OpGraph] = {}
    families: dict[str, str] = {}
    for number, row in enumerate(text.splitlines(), start=1):
        try:
            line = msgspec.json.decode(row, type=_NetworkLine)
            graph = OpGraph.from_json(bytes(line.graph))
        except (msgspec.MsgspecError, StretchError) as error:
            raise StretchError(f"{path}, line {number}: {error}") from error
        if line.network in graphs:
            raise StretchError(f"{path}, line {number}: the network `{line.network}` is there twice")
        graphs[line.network], families[line.network] = graph, line.family
    return graphs, families
