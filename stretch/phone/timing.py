"""One signature on one processor of a phone: its time, the times of its kernels, and where they are kept."""

import hashlib
from dataclasses import replace
from pathlib import Path

from predictors.devices import DeviceProfile
from predictors.errors import StretchError
from predictors.files import read_bytes
from predictors.fusion import Kernel, fuse
from predictors.measurements.litert import read_op_profile
from predictors.measurements.tables import KernelLatency, Latency
from scheduler.bundle.load import Bundle
from scheduler.bundle.tflite_file import MAX_BYTES, parse_tflite
from stretch.phone.adb import Ended, Phone
from stretch.phone.answer import SignatureRow
from stretch.phone.benchmark import Request, Spoken, read_spoken
from stretch.phone.kernels import pair
from stretch.phone.signatures import Work, family_of, graph_of
from stretch.profiling.ingest import brought_in
from stretch.profiling.table import Table

#: Name of the operators' times on the phone.
PROFILE = "profile.csv"


class PhoneTable:
    """Measurements that grow by a phone's.

    Args:
        table: The folder.
        device: Name of the phone in it.
        runtime: Runtime and version.
    """

    def __init__(self, table: Table, device: str, runtime: str) -> None:
        self._table, self._device, self._runtime = table, device, runtime

    def has(self, work: Work) -> bool:
        """Whether a signature was measured there with this runtime before."""
        return any(
            (row.device, row.network, row.processor, row.core_set, row.precision, row.runtime)
            == (self._device, work.network, work.place.family, work.place.core_set, work.precision, self._runtime)
            for row in self._table.latencies
        )

    def add(self, bundle: Bundle, work: Work, spoken: Spoken, kernels: list[tuple[Kernel, float]]) -> None:
        """Add a signature, and have it on disk."""
        graph = graph_of(bundle, work)
        known = self._table.graphs.get(graph.name)
        if known is not None and known.to_json() != graph.to_json():
            raise StretchError(
                f"{self._table.folder} has another network called `{graph.name}`", "choose another folder with --measurements"
            )
        where = (self._device, work.network, work.place.family, work.place.core_set, work.precision, self._runtime)
        rows = [KernelLatency(*where, kernel.name, "", *kernel.cost, ms) for kernel, ms in kernels]
        self._table.add(graph, family_of(bundle, work), Latency(*where, spoken.ms, spoken.std_ms), rows)
        self._table.save()


def open_table(folder: Path, device: str, benchmark: Path, works: list[Work]) -> PhoneTable:
    """The measurements in a folder, or none yet.

    Args:
        benchmark: The `benchmark_model` that is run: its content tells its version.
    """
    digest = hashlib.sha256(read_bytes(benchmark, "program", MAX_BYTES)).hexdigest()[:12]
    table = PhoneTable(Table.open(folder, brought_in(device), resume=True), device, f"benchmark_model {digest}")
    for work in works:
        if table.has(work):
            raise StretchError(
                f"{folder} has a time of {work.network} on {work.place.name} already", "choose another folder with --measurements"
            )
    return table


class Timing:
    """Times signatures of a bundle.

    Args:
        bundle: The bundle.
        content: Its TFLite file.
        phone: Where it is run.
        request: What all calls have in common.
        table: Where times go.
        profile: That they are named after.
        scratch: Folder for files on their way.
    """

    def __init__(
        self, bundle: Bundle, content: bytes, phone: Phone, request: Request, table: PhoneTable, profile: DeviceProfile, scratch: Path
    ) -> None:
        self._bundle, self._phone, self._request, self._table, self._scratch = bundle, phone, request, table, scratch
        self._file = parse_tflite(content, bundle.path / str(bundle.manifest.tflite))
        self._profile = profile

    def row(self, work: Work) -> SignatureRow:
        """Measure a signature and keep its time.

        It runs twice: alone, and with the times of its operators, which take time themselves.
        """
        request = replace(self._request, signature=work.signature, target=work.place.target, threads=work.place.threads)
        what = f"measure {work.signature} on {work.place.name}"
        ended = self._phone.attempt(request.command(), what)
        if ended.code != 0:
            return _row(work, None, [], f"benchmark_model failed: {ended.reason}")
        spoken = read_spoken(ended.err + ended.out, work.place.target)
        if spoken.elsewhere is not None:
            return _row(work, None, [], spoken.elsewhere)
        profiled = self._phone.attempt(request.command(f"{self._phone.folder}/{PROFILE}"), what)
        kernels = self._kernels(work, profiled)
        self._table.add(self._bundle, work, spoken, kernels)
        return _row(work, spoken, kernels, None)

    def _kernels(self, work: Work, profiled: Ended) -> list[tuple[Kernel, float]]:
        if profiled.code != 0:
            return []
        path = self._scratch / PROFILE
        self._phone.pull(PROFILE, path)
        try:
            operators = read_op_profile(path)
        except StretchError:
            return []  # some delegates tell no operator
        backend = self._profile.processors[work.place.family].backend
        order = [name for name, _ in self._file.operators(work.signature)]
        return pair(operators, fuse(graph_of(self._bundle, work), backend), order)


def _row(work: Work, spoken: Spoken | None, kernels: list[tuple[Kernel, float]], reason: str | None) -> SignatureRow:
    return SignatureRow(
        signature=work.signature,
        processor=work.place.name,
        precision=work.precision,
        ms=None if spoken is None else spoken.ms,
        std_ms=None if spoken is None else spoken.std_ms,
        kernels=len(kernels),
        reason=reason,
    )
