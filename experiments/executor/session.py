"""What a session costs and gives: start, throughput, memory: `python -m experiments.executor.session BUNDLE SMALL_BUNDLE INT8_BUNDLE`."""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.records import About, Facts, Value, write_record
from predictors.errors import StretchError
from scheduler.bundle.load import load_bundle
from scheduler.checks.verify import random_input
from scheduler.measure.benchmark import Throughput, throughput
from scheduler.placement.mapping import parse_mapping
from scheduler.runtime.session import Session

HERE = Path(__file__).parent

#: Run in a fresh process: seconds of the imports, of reading the bundle, of the session, of the first inference.
START = """
import json, sys, time
from pathlib import Path
marks = [time.perf_counter()]
from scheduler.bundle.load import load_bundle
from scheduler.runtime.session import Session
from scheduler.checks.verify import random_input
import onnx, onnxruntime
marks.append(time.perf_counter())
bundle = load_bundle(Path(sys.argv[1]))
marks.append(time.perf_counter())
session = Session(bundle, json.loads(sys.argv[2]))
marks.append(time.perf_counter())
x = random_input(bundle)
session(x)
marks.append(time.perf_counter())
session.close()
print(json.dumps([b - a for a, b in zip(marks, marks[1:])]))
"""


def starts(bundle: Path, mapping: dict[str, str], times: int) -> list[list[float]]:
    """Seconds of each step of a start, in fresh processes; a first one, which fills caches, does not count."""
    result = []
    for _ in range(times + 1):
        done = subprocess.run([sys.executable, "-c", START, str(bundle), json.dumps(mapping)], capture_output=True, text=True, check=True)
        result.append(json.loads(done.stdout))
    return result[1:]


def start_row(bundle: Path, mapping: dict[str, str], times: int) -> dict[str, Value]:
    """Medians of the steps, and the slowest session."""
    columns = list(zip(*starts(bundle, mapping, times), strict=True))
    imports, read, session, first = (round(statistics.median(column), 3) for column in columns)
    return {
        "bundle": bundle.name,
        "mapping": " ".join(f"{name}={target}" for name, target in mapping.items()) or "default",
        "imports_s": imports,
        "read_bundle_s": read,
        "session_s": session,
        "slowest_session_s": round(max(columns[2]), 3),
        "first_inference_s": first,
    }


def resident_bytes() -> int:
    """Memory of this process that is in use now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def growth(bundle: Path, mapping: dict[str, str], count: int, submitted: bool) -> tuple[float, float]:
    """Resident MiB after a tenth of `count` inferences and after all of them."""
    result = []
    with Session(bundle, mapping) as session:
        x = random_input(session.bundle)
        for part in (count // 10, count - count // 10):
            if submitted:
                for _ in range(part):
                    last = session.submit(x)
                last.result()
            else:
                for _ in range(part):
                    session.run(x)
            result.append(resident_bytes() / 2**20)
    return result[0], result[1]


def rates(result: Throughput) -> list[dict[str, Value]]:
    """A row for each contestant."""
    return [
        {
            "contestant": rate.name,
            "per_second": round(rate.per_second, 2),
            "p10_per_second": round(rate.p10_per_second, 2),
            "over_one_core": round(rate.per_second / result.contestants[2].per_second, 3),
            "over_this_bundle_on_one_core": None,
        }
        for rate in result.contestants
    ]


def about(flights: Sequence[str], rounds: int, starts: int) -> dict[str, About]:
    """What differs between the tables of the record.

    Args:
        flights: Tables of rates, whose contestants take turns.
        rounds: Of those.
        starts: Fresh processes behind a row of the table of starts.
    """
    alone = Facts(runs=max(3, rounds // 2), interleaved=False)
    rates = {name: About(columns={"over_this_bundle_on_one_core": alone}) for name in flights}
    return {**rates, "start": About(runs=starts, interleaved=False), "memory": About(runs=1, interleaved=False)}


def measure_throughput(path: Path, mapping: dict[str, str], in_flight: int, rounds: int, burst: int) -> list[dict[str, Value]]:
    """Rates of a bundle on its cores, and of the same bundle with all its subgraphs on one core."""
    bundle = load_bundle(path, check_hashes=True)
    x = random_input(bundle)
    used = list(dict.fromkeys(entry.processor for entry in bundle.manifest.subgraphs))
    with Session(bundle, mapping, in_flight=in_flight) as session:
        core = next(iter(session.placements.values())).cores[0]
        rows = rates(throughput(session, x, in_flight, rounds=rounds, burst=burst))
    with Session(bundle, dict.fromkeys(used, f"cpu{core}")) as session:
        alone = throughput(session, x, 1, rounds=max(3, rounds // 2), burst=burst).contestants[1].per_second
    for row in rows:
        row["over_this_bundle_on_one_core"] = round(float(str(row["per_second"])) / alone, 3)
    return rows


def main(words: list[str] | None = None) -> int:
    """Measure and write ``results/session.json``."""
    parser = argparse.ArgumentParser(prog="python -m experiments.executor.session", description=__doc__)
    parser.add_argument("bundle", type=Path, help="throughput and start are measured with this one")
    parser.add_argument("small", type=Path, help="memory is measured with this one, many times over")
    parser.add_argument("int8", type=Path, help="a bundle with an int8 dsp, whose compiled code is cached")
    parser.add_argument("--map", dest="mapping", default="gpu=cpu1", help="where processors run, as for `stretch run`")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--burst", type=int, default=8)
    parser.add_argument("--starts", type=int, default=7)
    parser.add_argument("--inferences", type=int, default=10_000)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "session.json")
    options = parser.parse_args(words)
    load = os.getloadavg()[0]
    try:
        mapping = parse_mapping([options.mapping])
        flights = {f"in_flight_{n}": measure_throughput(options.bundle, mapping, n, options.rounds, options.burst) for n in (2, 3)}
        start = [start_row(path, way, options.starts) for path in (options.bundle, options.int8) for way in (mapping, {})]
        memory: list[dict[str, Value]] = []
        for name, submitted in (("one at a time", False), ("two in flight", True)):
            early, late = growth(options.small, mapping, options.inferences, submitted)
            memory.append(
                {
                    "inferences": name,
                    "count": options.inferences,
                    "mib_after_a_tenth": round(early, 1),
                    "mib_after_all": round(late, 1),
                    "growth_mib": round(late - early, 2),
                }
            )
    except StretchError as error:
        sys.stderr.write(f"error: {error.message}\n")
        return error.exit_code
    manifest = load_bundle(options.bundle).manifest
    write_record(
        options.out,
        {**flights, "start": start, "memory": memory},
        source="measured",
        command=f"python -m experiments.executor.session {options.bundle.name} {options.small.name} {options.int8.name}",
        runs=options.rounds,
        interleaved=True,
        about=about(list(flights), options.rounds, options.starts),
        load=load,
        notes=[f"{manifest.model.name} planned for {manifest.device}, weights {manifest.weights.source}."],
    )
    sys.stderr.write(f"{options.out} written; fill the pages with python -m experiments.render\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
