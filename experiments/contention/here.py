"""Changing between plans on this machine while real processes use one of its cores: `python -m experiments.contention.here`."""

import argparse
import contextlib
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from timeit import timeit
from typing import Any

import numpy as np

from experiments.command import program, stretch
from experiments.records import Row, Value, write_record
from predictors.errors import StretchError
from scheduler.cores import available_cores, pin_thread
from scheduler.runtime.adaptive import AdaptiveSession
from scheduler.runtime.sequential import Sequential
from scheduler.runtime.session import Session

HERE = Path(__file__).parent
MODEL, DEVICE = "resnet18", "pixel6"
#: Numbers of inferences before, during and after the work of others.
BEFORE, WHILE, AFTER = 50, 105, 45
#: Number of inferences during long work of others, so large that the slow first ones are less than one in a hundred.
LONG = 600
#: Number of processes that compute without pause on the second core.
OTHERS = 3
#: An inference counts as undisturbed if it takes at most this many times the median before the work of others.
BACK = 1.25
#: Seconds for the start of a process.
START_S = 0.5


def main() -> None:
    """Measure and write ``results/measured.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("runs/contention"))
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    cores = available_cores()
    if len(cores) < 2:
        raise StretchError("two branches need two cores")
    first, second = cores[0], cores[-1]
    options.work.mkdir(parents=True, exist_ok=True)
    folder = options.work / f"{MODEL}_{DEVICE}_here"
    if not folder.exists():
        stretch("branch", MODEL, "--device", DEVICE, "--processors", "cpu,gpu", "--weights", "none", "--out", str(folder))
    mapping = {"cpu": f"cpu{first}", "gpu": f"cpu{second}"}
    x = np.random.default_rng(0).standard_normal((1, 3, 224, 224)).astype(np.float32)
    result: dict[str, list[list[float]]] = {}
    lasting: dict[str, list[list[float]]] = {}
    decided: list[Row] = []
    for number in range(options.rounds + 1):
        with Session(folder, mapping) as both, Session(folder, {"cpu": f"cpu{first}"}, processors=["cpu"]) as alone:
            session = AdaptiveSession({"both cores": both, "the first core": alone})
            whole = Sequential(folder / "model.onnx", (second,))
            contenders: dict[str, Callable[[Any], Any]] = {
                "both cores": both,
                "changing between both and the first": session,
                "one graph on the core that is taken": whole.run,
            }
            order = list(contenders) if number % 2 == 0 else list(reversed(contenders))
            into, count = (result, WHILE) if number < options.rounds else (lasting, LONG)
            for name in order:
                into.setdefault(name, []).append(latencies(contenders[name], x, second, count))
            decided += [
                {"round, inference": f"{number + 1}, {row.inference}", "what": row.kind, "plan": row.after, "why": row.reason}
                for row in session.decisions
            ]
    write_record(
        HERE / "results" / "measured.json",
        {
            "measured": [row(name, runs) for name, runs in result.items()],
            "lasting": [row(name, runs, LONG) for name, runs in lasting.items()],
            "measured_decisions": decided,
        },
        source="measured",
        command=f"python -m experiments.contention.here --rounds {options.rounds}",
        runs=options.rounds,
        interleaved=True,
        notes=[
            f"{MODEL} branched for {DEVICE}'s CPU and GPU, of which the first runs on core {first} and the second on core {second}; {BEFORE} inferences, "
            f"{WHILE} (lasting: {LONG}, one round) beside {OTHERS} processes that compute on core {second} without a pause, {AFTER} after they have ended; contenders in turns, "
            "figures over all rounds",
            f"back: inferences after the processes have ended until three in a row take at most {BACK:g} times the median before; the worst round",
        ],
    )


def latencies(run: Callable[[Any], Any], x: Any, core: int, count: int) -> list[float]:
    """Return the time of each inference in ms: before, `count` of them during, and after the work of others."""
    once = partial(timeit, partial(run, x), number=1)
    once()
    times = [once() for _ in range(BEFORE)]
    with others(core):
        times += [once() for _ in range(count)]
    times += [once() for _ in range(AFTER)]
    return [1e3 * seconds for seconds in times]


@contextlib.contextmanager
def others(core: int) -> Iterator[None]:
    """Run processes that compute on a core within the context."""
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_spin, args=(core,), daemon=True) for _ in range(OTHERS)]
    for process in processes:
        process.start()
    time.sleep(START_S * OTHERS)
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def _spin(core: int) -> None:
    pin_thread((core,))
    a = np.ones((64, 64), np.float32)
    while True:
        a = a @ a / 64


def row(name: str, runs: list[list[float]], count: int = WHILE) -> dict[str, Value]:
    """Return the row of a plan over all rounds, with `count` inferences during the work of others."""
    before, beside, after = (
        [ms for run in runs for ms in run[start:end]]
        for start, end in ((0, BEFORE), (BEFORE, BEFORE + count), (BEFORE + count, BEFORE + count + AFTER))
    )
    return {
        "plan": name,
        "before: median ms": round(statistics.median(before), 2),
        "beside others: median ms": round(statistics.median(beside), 2),
        "beside others: p90 ms": round(float(np.percentile(beside, 90)), 2),
        "beside others: p99 ms": round(float(np.percentile(beside, 99)), 2),
        "after: median ms": round(statistics.median(after), 2),
        "back after": max(_back(run, count) for run in runs),
    }


def _back(run: list[float], count: int) -> int:
    usual = BACK * statistics.median(run[:BEFORE])
    after = run[BEFORE + count :]
    return next((start for start in range(len(after) - 2) if all(ms <= usual for ms in after[start : start + 3])), len(after))


if __name__ == "__main__":
    program(main)
