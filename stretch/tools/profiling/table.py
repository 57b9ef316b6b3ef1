"""Growing measurements in a folder for `stretch profile --fit`, which is consistent after every save, even if the program is killed."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import tomli_w

from predictors.errors import StretchError
from predictors.graph import OpGraph
from predictors.measurements.networks import KERNELS, LATENCIES, NETWORKS, SOURCE, Source, load_measurements, write_networks
from predictors.measurements.networks import Measurements as Loaded
from predictors.measurements.tables import KernelLatency, Latency, write_table
from scheduler.tuning import interruption_waits


@dataclass
class Table:
    """Networks and times so far."""

    folder: Path  # Their folder.
    source: Source  # Description and machine.
    graphs: dict[str, OpGraph] = field(default_factory=dict)  # Networks by name.
    families: dict[str, str] = field(default_factory=dict)  # Cross-validation group of each network.
    latencies: list[Latency] = field(default_factory=list)
    kernels: list[KernelLatency] = field(default_factory=list)  # Times of kernels.

    @classmethod
    def open(cls, folder: Path, source: Source, resume: bool) -> "Table":
        """An empty table, or that of an earlier run."""
        if not folder.exists():
            return cls(folder, source)
        if not resume:
            raise StretchError(f"{folder} has measurements already", "go on with them by --resume, or choose another --name or --out")
        old = load_measurements(folder)
        if old.source.notes != source.notes:
            raise StretchError(
                f"the measurements in {folder} are of another machine or other versions: {old.source.notes}",
                "measure anew under another --name",
            )
        return cls(folder, source, old.graphs, old.families, old.latencies, old.kernels)

    def add(self, graph: OpGraph, family: str, latency: Latency, kernels: list[KernelLatency]) -> None:
        """Add the time of one network on one processor."""
        self.graphs[graph.name], self.families[graph.name] = graph, family
        self.latencies.append(latency)
        self.kernels += kernels

    def save(self) -> None:
        """Write this state; a reader finds complete files, old or new, and no time without its network."""
        if not self.graphs:
            return
        with interruption_waits():
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise StretchError(f"cannot make the folder {self.folder}: {error.strerror}", "choose another with --out") from error
            _replace(self.folder / SOURCE, lambda path: path.write_text(tomli_w.dumps(msgspec.to_builtins(self.source))))
            named = [(name, self.families[name], graph) for name, graph in self.graphs.items()]
            _replace(self.folder / NETWORKS, lambda path: write_networks(path, named))
            if self.latencies:
                _replace(self.folder / LATENCIES, lambda path: write_table(path, self.latencies))
            if self.kernels:
                _replace(self.folder / KERNELS, lambda path: write_table(path, self.kernels))

    def loaded(self) -> Loaded:
        """As fits take them."""
        return Loaded(self.source, self.graphs, self.families, self.latencies, self.kernels)


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    """Atomically replace a file."""
    partial = path.with_name(f".{path.name}")
    try:
        write(partial)
        os.replace(partial, path)
    except OSError as error:
        raise StretchError(f"cannot write {path}: {error.strerror}", "choose a writable folder with --out") from error
    finally:
        partial.unlink(missing_ok=True)
