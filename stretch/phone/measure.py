"""A bundle on a phone: every signature on every processor, then all branches at once."""

import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from predictors.devices import load_device
from predictors.errors import StretchError, UsageError
from scheduler.bundle.load import Bundle
from scheduler.runner.sources import tflite_content
from stretch.phone.adb import Phone, find_phone, workspace
from stretch.phone.answer import PhoneAnswer, SignatureRow
from stretch.phone.benchmark import Request
from stretch.phone.side_by_side import run_side_by_side
from stretch.phone.signatures import mask_of, places, works
from stretch.phone.timing import Timing, open_table

#: Names on the phone.
GRAPH, PROGRAM = "model.tflite", "benchmark_model"

#: Longest name of a phone in tables.
MAX_NAME = 100

#: Called with the name of the next step.
Step = Callable[[str], object]


@dataclass(frozen=True)
class PhoneRequest:
    """What to measure on a phone, and how."""

    serial: str | None  # Of the phone; None for the only one.
    benchmark: Path | None  # The user's `benchmark_model` for Android; None to measure no signature.
    runner: Path | None  # The user's Android build of this bundle's runner; None to run none.
    libraries: Path | None  # Folder of LiteRT's libraries for Android, which are put beside both; None for none.
    measurements: Path  # Folder of measurements to add to.
    profile: str | None  # That the times are named after, an id or a file; None for the bundle's device.
    core_set: str | None  # Of the CPU, as the profile names it; its default if None.
    cores: str | None  # The same as numbers of the phone's cores, such as ``4-6``; None for any.
    runs: int  # Measured runs.
    warmup: int  # Runs before them.
    limit: float  # Seconds that a call of `adb` may take.
    trace: Path | None  # File for the timeline of the branches; None for none.


def measure(bundle: Bundle, request: PhoneRequest, x: NDArray[Any], step: Step = lambda doing: None) -> PhoneAnswer:
    """Measure a bundle on a phone.

    What was measured before something went wrong is kept; nothing is left on the phone.

    Args:
        x: What the branches read when all of them run.
        step: Called with the name of the next step.
    """
    if request.benchmark is None and request.runner is None:
        raise UsageError("--adb needs something to run on the phone", "give --benchmark-model FILE, --runner FILE or both")
    content = tflite_content(bundle)
    mask = mask_of(request.cores)
    libraries = _files(request)
    npu = any("Dispatch" in path.name for path in libraries)
    named = request.profile or bundle.manifest.device
    profile = load_device(named)
    where = places(profile, request.core_set, npu)
    wanted = works(bundle, where) if request.benchmark else []
    phone = find_phone(request.serial, request.limit)
    name, version = _name(phone), phone.property("ro.build.version.release")
    table = None if request.benchmark is None else open_table(request.measurements, name, request.benchmark, wanted)
    rows: list[SignatureRow] = []
    with tempfile.TemporaryDirectory() as folder, workspace(phone):
        scratch = Path(folder)
        (scratch / GRAPH).write_bytes(content)
        step("copying")
        graph = phone.push(scratch / GRAPH, GRAPH)
        for path in libraries:
            phone.push(path, path.name)
        if request.benchmark is not None and table is not None:
            program = phone.push(request.benchmark, PROGRAM, program=True)
            benchmark_request = Request(program, graph, "", "cpu", 1, request.runs, request.warmup, mask, phone.folder)
            timing = Timing(bundle, content, phone, benchmark_request, table, profile, scratch)
            for work in wanted:
                step(f"{work.signature} on {work.place.name}")
                rows.append(timing.row(work))
        beside = None
        if request.runner is not None:
            step("all branches")
            threads = next((place.threads for place in where if place.target == "cpu"), 1)
            options = (f"--repeat={request.runs}", f"--warmup={request.warmup}", f"--time-limit={request.limit:g}")
            beside = run_side_by_side(
                bundle,
                phone,
                request.runner,
                [path.name for path in libraries],
                x,
                (*options, *_pinned(bundle, mask, threads)),
                request.trace,
            )
    return PhoneAnswer(
        serial=phone.serial,
        phone=name,
        system=f"Android {version or 'of unknown version'}",
        model=bundle.manifest.model.name,
        device=bundle.manifest.device,
        profile=named,
        measurements=str(request.measurements) if any(row.ms is not None for row in rows) else None,
        signatures=rows,
        runner=beside,
        warnings=[],
    )


def _files(request: PhoneRequest) -> list[Path]:
    """What is copied, checked before the phone is looked for."""
    for what, path in (("--benchmark-model", request.benchmark), ("--runner", request.runner)):
        if path is not None and not path.is_file():
            raise StretchError(f"{what}: there is no file {path}")
    if request.libraries is None:
        return []
    libraries = sorted(request.libraries.glob("*.so")) if request.libraries.is_dir() else []
    if not libraries:
        raise StretchError(f"--libraries: {request.libraries} is no folder with libraries (*.so)")
    return libraries


def _name(phone: Phone) -> str:
    """What the phone calls itself, as a name in tables."""
    model = re.sub(r"[^A-Za-z0-9._-]+", "-", phone.property("ro.product.model")).strip("-._")
    return model[:MAX_NAME] or "phone"


def _pinned(bundle: Bundle, mask: int, threads: int) -> tuple[str, ...]:
    """Options of the runner for the CPU's threads and cores, where the bundle uses it."""
    if not any(sub.processor == "cpu" for sub in bundle.manifest.subgraphs):
        return ()
    cores = "+".join(str(core) for core in range(64) if mask >> core & 1)
    return (f"--threads=cpu={threads}", *([f"--cores=cpu={cores}"] if cores else []))
