"""Many inferences over delegates that fail at random: nothing may be lost, wrong or left behind. `python -m experiments.chaos.run`."""

import argparse
import gc
import os
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.chaos.broken import Chaos, broken
from experiments.records import Value, write_record
from scheduler.delegates import get_delegate
from scheduler.faults.policy import FaultPolicy
from scheduler.runtime.sequential import Sequential, max_error
from scheduler.runtime.session import Session

HERE = Path(__file__).parent
#: Inferences at full length.
FULL = 100_000
#: Different inputs, whose outputs are known.
INPUTS = 16
#: Largest difference from the whole model that rounding explains, relative to the largest output.
EQUAL = 1e-4
#: In flight at once where inferences are submitted.
IN_FLIGHT = 3
SHAPE = (3, 32, 32)
CORE = (1,)


@dataclass(frozen=True)
class Case:
    """One kind of trouble."""

    inner: str  # Delegate that is broken.
    share: float  # Of all inferences.
    rates: dict[str, float]  # What goes wrong how often.
    submitted: bool  # Whether inferences are in flight together.
    spot_every: int = 0  # Of the policy.
    limit_s: float = 60.0  # Seconds that a call may take.

    @property
    def name(self) -> str:
        """For the table."""
        return f"{self.inner}, {f'{IN_FLIGHT} in flight' if self.submitted else 'one at a time'}: {', '.join(self.rates)}"


ERRORS = {"raise": 0.002, "lost": 0.001, "nan": 0.001, "stall": 0.001}
CASES = (
    Case("cpu", 0.25, ERRORS, submitted=False),
    Case("cpu", 0.25, ERRORS, submitted=True),
    Case("cpu", 0.01, {"wrong": 0.01}, submitted=False, spot_every=1),
    Case("cpu", 0.02, {"hang": 0.001}, submitted=False, limit_s=0.5),
    Case("cpu", 0.02, {"hang": 0.001}, submitted=True, limit_s=0.5),
    Case("process", 0.1, ERRORS | {"kill": 0.001}, submitted=False),
    Case("process", 0.1, ERRORS | {"kill": 0.001}, submitted=True),
    Case("opencl", 0.06, ERRORS, submitted=False),
    Case("opencl", 0.05, ERRORS, submitted=True),
    Case("null", 0.14, {"raise": 0.002, "lost": 0.001, "stall": 0.001}, submitted=True),
)


def main() -> int:
    """Run all cases and write ``results/chaos.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inferences", type=int, default=FULL)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    warnings.simplefilter("ignore")
    rows: list[dict[str, Value]] = []
    with tempfile.TemporaryDirectory() as folder:
        bundle = made(Path(folder) / "bundle")
        for number, case in enumerate(CASES):
            rows.append(tried(bundle, case, round(case.share * options.inferences), options.seed + number))
            sys.stderr.write(f"{rows[-1]}\n")
    write_record(
        HERE / "results" / "chaos.json",
        {"chaos": rows, "total": [total(rows)]},
        source="measured",
        command=f"python -m experiments.chaos.run --inferences {options.inferences} --seed {options.seed}",
        runs=1,
        load=load,
        notes=[
            f"tiny_resnet at {'x'.join(map(str, SHAPE))} branched for pixel6's CPU and GPU, whose branches the broken delegate computes; seed {options.seed}; "
            f"{INPUTS} inputs in turn",
            f"wrong: the output differs from the whole model's by more than {EQUAL:g} of its largest element; null computes nothing, so its outputs are not looked at",
            "left behind: threads, processes and file descriptors more than before, when the session is closed; threads of calls that hang end when the hang does",
        ],
    )
    return 0 if not any(total(rows)[key] for key in ("lost", "wrong", "left behind")) else 1


def made(folder: Path) -> Path:
    """The bundle."""
    import stretch
    from stretch.models.tiny import tiny_resnet

    stretch.branch(tiny_resnet(), "pixel6", out=folder, input_shape=SHAPE, processors=("cpu", "gpu"), alpha=100.0, beta=5.0)
    return folder


def tried(bundle: Path, case: Case, count: int, seed: int) -> dict[str, Value]:
    """One case; what came of it."""
    row: dict[str, Value] = {"case": case.name, "inferences": count}
    if get_delegate(case.inner).unavailable():
        raise SystemExit(f"the delegate {case.inner} cannot run here: {get_delegate(case.inner).unavailable()}")
    rng = np.random.default_rng(seed)
    xs = [rng.standard_normal((1, *SHAPE)).astype(np.float32) for _ in range(INPUTS)]
    whole = Sequential(bundle / "model.onnx")
    wanted = [np.asarray(whole.run(x)).copy() for x in xs]
    used(bundle, case, xs, Chaos(seed, {}))  # libraries open files of their own once in a process
    before = held()
    chaos = Chaos(seed, case.rates)
    began = time.perf_counter()
    lost, wrong, decided = used(bundle, case, [xs[i % INPUTS] for i in range(count)], chaos, wanted)
    seconds = time.perf_counter() - began
    row["faults"] = sum(chaos.happened.values())
    row["retired"], row["restored"] = decided["retired"], decided["restored"]
    row["lost"], row["wrong"] = lost, wrong
    row["left behind"] = sum(max(0, now - then) for now, then in zip(held(), before, strict=True))
    row["seconds"] = round(seconds, 1)
    return row


def used(bundle: Path, case: Case, xs: list[Any], chaos: Chaos, wanted: list[Any] | None = None) -> tuple[int, int, Counter[str]]:
    """A session's whole life: inferences that were lost, that were wrong, and what was decided how often."""
    delegate = broken(case.inner, CORE, chaos)
    policy = FaultPolicy(back_off=4, longest=64, trial=2, spot_every=case.spot_every)
    lost = wrong = 0
    # the broken delegate goes by the name of one that no machine's stand-ins have
    with Session(
        bundle,
        {"gpu": PLACE[case.inner]},
        delegates={PLACE[case.inner].rstrip("1"): delegate},
        faults=policy,
        in_flight=IN_FLIGHT,
        time_limit=case.limit_s,
    ) as session:
        for number, output in enumerate(outputs(session, xs, submitted=case.submitted)):
            if isinstance(output, Exception):
                lost += 1
            elif wanted is not None and session.computes and not max_error(output, wanted[number % INPUTS]) <= EQUAL:
                wrong += 1
        decided = Counter(decision.what for decision in session.decisions)
    chaos.over.set()
    delegate.close()
    return lost, wrong, decided


#: Where the GPU's branches are placed for each broken delegate: a name that has its dispatch, and that no stand-in goes by.
PLACE = {"cpu": "null", "null": "null", "process": "process", "opencl": "opencl"}


def outputs(session: Session, xs: list[Any], *, submitted: bool) -> Iterator[Any]:
    """What comes of each input, in order: an output, or an error."""
    waiting: list[Any] = []
    for x in xs:
        if not submitted:
            try:
                yield session(x)
            except Exception as error:
                yield error
            continue
        waiting.append(session.submit(x))
        if len(waiting) > IN_FLIGHT:
            yield _result(waiting.pop(0))
    for future in waiting:
        yield _result(future)


def _result(future: Any) -> Any:
    return future.exception() or future.result()


def held() -> tuple[int, int, int]:
    """Threads, child processes and file descriptors, once what ends has ended."""
    result = (0, 0, 0)
    for _ in range(50):
        gc.collect()
        children = subprocess.run(
            ["ps", "-ww", "-o", "args=", "--ppid", str(os.getpid())], capture_output=True, text=True, check=True
        ).stdout
        now = threading.active_count(), children.count("process import child"), len(os.listdir("/proc/self/fd"))
        if now == result:
            break
        result = now
        time.sleep(0.1)
    return result


def total(rows: list[dict[str, Value]]) -> dict[str, Value]:
    """All cases together."""
    keys = ("inferences", "faults", "retired", "restored", "lost", "wrong", "left behind", "seconds")
    return {"case": "all", **{key: round(sum(float(row[key] or 0) for row in rows), 1) for key in keys}}


if __name__ == "__main__":
    sys.exit(main())
