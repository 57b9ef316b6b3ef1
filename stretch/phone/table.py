"""The times of signatures as measurements: networks of their own, in a folder that `stretch fit` reads."""

from dataclasses import dataclass
from pathlib import Path

from predictors.errors import StretchError
from predictors.graph import OpGraph
from predictors.measurements.tables import KernelLatency, Latency
from stretch.phone.signatures import Work
from stretch.profiling.ingest import brought_in
from stretch.profiling.table import Table


@dataclass(frozen=True)
class Phones:
    """What measurements say of the phone.

    Args:
        device: Its name in the tables.
        runtime: Runtime and version.
    """

    device: str
    runtime: str

    def latency(self, work: Work, ms: float, std_ms: float | None) -> Latency:
        """The time of a signature."""
        return Latency(self.device, work.network, work.place.family, work.place.core_set, work.precision, self.runtime, ms, std_ms)

    def kernel(self, work: Work, name: str, cost: tuple[object, ...], ms: float) -> KernelLatency:
        """The time of one kernel of a signature; `cost` has the fields of `KernelCost`."""
        place = work.place
        return KernelLatency(
            self.device,
            work.network,
            place.family,
            place.core_set,
            work.precision,
            self.runtime,
            name,
            "",
            *cost,
            ms,  # type: ignore[arg-type]
        )


def open_table(folder: Path, phone: Phones, works: list[Work]) -> Table:
    """The measurements in a folder, or none yet.

    Raises:
        StretchError: If they are of something else, or a signature was measured there before.
    """
    table = Table.open(folder, brought_in(phone.device), resume=True)
    known = {(row.device, row.network, row.processor, row.core_set, row.precision, row.runtime) for row in table.latencies}
    for work in works:
        if (phone.device, work.network, work.place.family, work.place.core_set, work.precision, phone.runtime) in known:
            raise StretchError(
                f"{folder} has a time of {work.network} on {work.place.name} already", "choose another folder with --measurements"
            )
    return table


def add(table: Table, graph: OpGraph, family: str, latency: Latency, kernels: list[KernelLatency]) -> None:
    """Add a signature; one that other networks of the folder have the name of keeps the graph that is there.

    Raises:
        StretchError: If the graph there is another one.
    """
    known = table.graphs.get(graph.name)
    if known is not None and known != graph:
        raise StretchError(f"{table.folder} has another network called `{graph.name}`", "choose another folder with --measurements")
    table.add(graph, family, latency, kernels)
