"""How pauses slow a processor down, and how steady it is: `python -m experiments.real_processors.pauses BUNDLE...`.

Each bundle's original runs alone on each processor: in a row, and after pauses of 50 ms with none, one or eight inferences between.
Several sessions show whether a processor has several speeds; where it has, the time that the host took away from this machine
(`steal` of ``/proc/stat``) says whether others computed on its cores.
"""

import argparse
import time
from pathlib import Path
from statistics import median
from timeit import timeit

from experiments.real_processors.pairs import whole
from experiments.records import Row, write_record
from scheduler.bundle.load import Bundle, load_bundle
from scheduler.checks.verify import random_input
from scheduler.placement.mapping import bundle_precisions
from scheduler.runtime.session import Session

HERE = Path(__file__).parent
PAUSE_S, PAUSES, BETWEEN, IN_A_ROW, STRETCH = 0.05, 15, (0, 1, 8), 200, 20


def stolen() -> tuple[int, int]:
    """Return the time that the host took from all cores, and all their time, in ticks."""
    ticks = [int(text) for text in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    return ticks[7], sum(ticks[:8])


def after_pauses(session: Session, bundle: Bundle, between: int) -> float:
    """Return the median time in ms of an inference after a pause and some other inferences."""
    x, times = random_input(bundle), []
    for _ in range(PAUSES):
        time.sleep(PAUSE_S)
        for _ in range(between):
            session.run(x)
        times.append(1e3 * timeit(lambda: session.run(x), number=1))
    return round(median(times), 2)


def in_a_row(session: Session, bundle: Bundle) -> list[tuple[float, float]]:
    """Return the median time in ms and the percentage of time that the host took, for each stretch of successive inferences."""
    x, stretches = random_input(bundle), []
    for _ in range(IN_A_ROW // STRETCH):
        taken, total = stolen()
        ms = median(1e3 * timeit(lambda: session.run(x), number=1) for _ in range(STRETCH))
        after = stolen()
        stretches.append((round(ms, 2), round(100 * (after[0] - taken) / max(1, after[1] - total), 1)))
    return stretches


def main() -> None:
    """Measure, and write the record."""
    parser = argparse.ArgumentParser(prog="python -m experiments.real_processors.pauses", description=__doc__)
    parser.add_argument("bundles", type=Path, nargs="+")
    parser.add_argument("--sessions", type=int, default=6)
    options = parser.parse_args()
    pauses, speeds = list[Row](), list[Row]()
    for folder in options.bundles:
        bundle = load_bundle(folder)
        for processor in bundle_precisions(bundle.manifest):
            name, alone = f"{folder.name}, {processor}", whole(bundle, processor)
            for number in range(options.sessions):
                with Session(alone) as session:
                    stretches = in_a_row(session, alone)
                    (fast, _), (slow, steal) = min(stretches), max(stretches)
                    speeds.append(
                        {"network, processor": name, "session": number + 1, "fastest ms": fast, "slowest ms": slow, "steal %": steal}
                    )
                    if number == 0:
                        after = {f"after {between} more": after_pauses(session, alone, between) for between in BETWEEN}
                        pauses.append({"network, processor": name, "in a row": fast, **after})
    write_record(
        HERE / "results" / "pauses.json",
        {"pauses": pauses, "speeds": speeds},
        source="measured",
        command="python -m experiments.real_processors.pauses BUNDLE...",
        runs=PAUSES,
        notes=[
            "pauses: median ms of inferences in a row, and after 50 ms of rest and so many inferences more.",
            f"speeds: medians of {STRETCH} inferences each in a row of {IN_A_ROW}; steal: what the host took away during the slowest.",
        ],
    )


if __name__ == "__main__":
    main()
