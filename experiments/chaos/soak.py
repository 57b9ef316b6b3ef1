"""Inferences for a long time beside a load, over delegates that fail at random: does anything grow? `python -m experiments.chaos.soak`."""

import argparse
import contextlib
import gc
import os
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import linear_regression, median
from typing import Any

import numpy as np

from experiments.chaos.broken import Chaos, broken
from experiments.chaos.run import CORE, EQUAL, IN_FLIGHT, INPUTS, PLACE, SHAPE, held, made, outputs
from experiments.records import Value, write_record
from scheduler.faults.policy import FaultPolicy
from scheduler.runtime.sequential import Sequential, max_error
from scheduler.runtime.session import Session

HERE = Path(__file__).parent
#: Minutes at full length.
FULL = 30.0
#: What goes wrong how often, by the delegate that is broken.
RATES = {
    "cpu": {"raise": 0.002, "lost": 0.001, "nan": 0.001, "stall": 0.002},
    "process": {"raise": 0.002, "lost": 0.001, "stall": 0.002, "kill": 0.001},
}
#: Inferences between two changes: of the session, and of whether they are in flight together.
BURST = 40
#: Bursts that a session lives for; some live as long as the soak.
LIFE = 25
#: The load computes for so many seconds, and rests as long.
LOAD_S = 0.7
#: A process that takes a core by turns.
BUSY = """
import os, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
while True:
    end = time.monotonic() + float(sys.argv[2])
    while time.monotonic() < end:
        pass
    time.sleep(float(sys.argv[2]))
"""


@dataclass(frozen=True)
class Sample:
    """What a process and its children have at one time."""

    seconds: float  # Since the beginning.
    threads: int  # Of this process.
    descriptors: int  # Of this process.
    children: int  # Processes of delegates.
    mib: float  # Memory of this process in use.
    children_mib: float  # The same of its children, together.


def main(words: list[str] | None = None) -> int:
    """Soak and write ``results/soak.json``."""
    parser = argparse.ArgumentParser(prog="python -m experiments.chaos.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=FULL)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "soak.json")
    options = parser.parse_args(words)
    load = os.getloadavg()[0]
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        bundle = made(Path(folder) / "bundle")
        result, samples, left = soaked(bundle, options.minutes * 60, options.seed)
    summary = summed(result, samples, left)
    write_record(
        options.out,
        {"soak": [summary], "over_time": over_time(samples)},
        source="measured",
        command=f"python -m experiments.chaos.soak --minutes {options.minutes:g} --seed {options.seed}",
        runs=1,
        load=load,
        notes=[
            f"tiny_resnet at {'x'.join(map(str, SHAPE))} branched for pixel6's CPU and GPU, whose branches the broken delegate computes, "
            f"cpu and process in turn, one at a time and {IN_FLIGHT} in flight; seed {options.seed}",
            f"beside it a process computes on core {CORE[0]} for {LOAD_S:g} s and rests as long",
            "growth: slope of a straight line through the second half of the samples; ends: medians of the first and the last tenth of that half",
            "left behind: threads, processes and file descriptors more than before, when every session is closed",
        ],
    )
    sys.stderr.write(f"{summary}\n{options.out} written; fill the pages with python -m experiments.render\n")
    return 0 if not any(summary[key] for key in ("lost", "wrong", "left behind")) else 1


def soaked(bundle: Path, seconds: float, seed: int) -> tuple[Counter[str], list[Sample], int]:
    """Run inferences for a while.

    Returns:
        What happened how often, what there was over time, and what is left when every session is closed.
    """
    rng = np.random.default_rng(seed)
    xs = [rng.standard_normal((1, *SHAPE)).astype(np.float32) for _ in range(INPUTS)]
    whole = Sequential(bundle / "model.onnx")
    wanted = [np.asarray(whole.run(x)).copy() for x in xs]
    _warmed_up(bundle, xs, seed)
    before, result, samples = held(), Counter[str](), list[Sample]()
    ended = threading.Event()
    began = time.monotonic()
    watcher = threading.Thread(target=_watch, args=(samples, began, max(0.1, seconds / 600), ended), name="soak", daemon=True)
    watcher.start()
    with loaded(CORE[0]):
        _run(bundle, xs, wanted, began + seconds, seed, result)
    ended.set()
    watcher.join()
    left = sum(max(0, now - then) for now, then in zip(held(), before, strict=True))
    return result, samples, left


def _warmed_up(bundle: Path, xs: Sequence[Any], seed: int) -> None:
    """Libraries open files of their own once in a process."""
    for inner in RATES:
        with _session(bundle, inner, Chaos(seed, {})) as (session, _):
            list(outputs(session, list(xs), submitted=True))


def _run(bundle: Path, xs: Sequence[Any], wanted: Sequence[Any], end: float, seed: int, name: Counter[str]) -> None:
    """Inferences until the end: on sessions that live as long, and on others that come and go."""
    with contextlib.ExitStack() as lasting:
        kept = {inner: lasting.enter_context(_session(bundle, inner, Chaos(seed, rates))) for inner, rates in RATES.items()}
        number = 0
        while time.monotonic() < end:
            for inner, rates in RATES.items():
                number += 1
                with _session(bundle, inner, Chaos(seed + number, rates)) as (young, chaos):
                    for burst in range(LIFE):
                        for session in (kept[inner][0], young):
                            _burst(session, xs, wanted, name, submitted=burst % 2 == 1)
                        if time.monotonic() >= end:
                            break
                name["sessions"] += 1
                name["faults"] += chaos.happened.total()
        name["faults"] += sum(chaos.happened.total() for _, chaos in kept.values())


def summed(name: Counter[str], samples: Sequence[Sample], left: int) -> dict[str, Value]:
    """The whole soak as a row."""
    late = samples[len(samples) // 2 :]
    tenth = max(1, len(late) // 10)
    return {
        "minutes": round(samples[-1].seconds / 60, 2),
        **{key: name[key] for key in ("inferences", "sessions", "faults", "lost", "wrong")},
        "left behind": left,
        "most threads": max(sample.threads for sample in samples),
        "most descriptors": max(sample.descriptors for sample in samples),
        "most processes": max(sample.children for sample in samples),
        "mib at half": round(median(item.mib for item in late[:tenth]), 1),
        "mib at the end": round(median(item.mib for item in late[-tenth:]), 1),
        "growth mib per hour": round(slope([item.seconds for item in late], [item.mib for item in late]) * 3600, 1),
    }


def over_time(samples: Sequence[Sample], rows: int = 10) -> list[dict[str, Value]]:
    """Medians of the samples in equal parts of the time."""
    result: list[dict[str, Value]] = []
    for number in range(min(rows, len(samples))):
        part = samples[number * len(samples) // rows : (number + 1) * len(samples) // rows] or samples[number : number + 1]
        result.append(
            {
                "minute": round(part[-1].seconds / 60, 2),
                "threads": median(item.threads for item in part),
                "descriptors": median(item.descriptors for item in part),
                "processes": median(item.children for item in part),
                "mib": round(median(item.mib for item in part), 1),
                "mib of processes": round(median(item.children_mib for item in part), 1),
            }
        )
    return result


def slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Slope of the straight line that fits best, by least squares; 0 through one point."""
    return linear_regression(xs, ys).slope if len(set(xs)) > 1 else 0.0


@contextlib.contextmanager
def loaded(core: int) -> Iterator[None]:
    """A process beside this one that takes a core by turns, while the block runs."""
    core = core if core in os.sched_getaffinity(0) else min(os.sched_getaffinity(0))
    process = subprocess.Popen([sys.executable, "-c", BUSY, str(core), str(LOAD_S)])
    try:
        yield
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def _session(bundle: Path, inner: str, chaos: Chaos) -> Iterator[tuple[Session, Chaos]]:
    delegate = broken(inner, CORE, chaos)
    place = PLACE[inner]
    policy = FaultPolicy(back_off=4, longest=64, trial=2)
    with Session(bundle, {"gpu": place}, delegates={place: delegate}, faults=policy, in_flight=IN_FLIGHT) as session:
        yield session, chaos
    chaos.over.set()
    delegate.close()


def _burst(session: Session, xs: Sequence[Any], wanted: Sequence[Any], name: Counter[str], *, submitted: bool) -> None:
    for number, output in enumerate(outputs(session, [xs[i % INPUTS] for i in range(BURST)], submitted=submitted)):
        name["inferences"] += 1
        if isinstance(output, Exception):
            name["lost"] += 1
        elif not max_error(output, wanted[number % INPUTS]) <= EQUAL:
            name["wrong"] += 1


def _watch(samples: list[Sample], began: float, period: float, ended: threading.Event) -> None:
    while True:
        samples.append(_sample(time.monotonic() - began))
        if ended.wait(period):
            return


def _sample(seconds: float) -> Sample:
    children = _children()
    memory = [_mib(pid) for pid in children]
    gc.collect()
    return Sample(seconds, threading.active_count(), len(os.listdir("/proc/self/fd")), len(children), _mib(os.getpid()), sum(memory))


def _children() -> list[int]:
    """Processes of delegates that this one has started."""
    children = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            children += [int(pid) for pid in (task / "children").read_text().split()]
    return [pid for pid in children if b"process import child" in _command(pid)]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has ended meanwhile
        return b""


def _mib(pid: int) -> float:
    """Memory of a process in use, MiB; 0 if it has ended."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


if __name__ == "__main__":
    sys.exit(main())
