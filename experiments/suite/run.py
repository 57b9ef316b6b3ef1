"""How strong and how long the fast tests are: `python -m experiments.suite.run reach|strength|times …`.

`reach DIR` runs the fast tests with coverage by test and keeps what it finds in DIR (the packages `coverage` and `pytest-xdist`
are needed). `strength DIR NAME` judges 300 mutants with that and writes the record `NAME`; `--mutants FILE` takes those of an
earlier record, so that two suites are judged by the same changes. `times NAME` times `make test` alone and beside two processes
that compute. `orders NAME` runs the fast tests in random order, with one and with two threads in turn, and adds to the record.
"""

import argparse
import concurrent.futures
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

import msgspec

from experiments.records import read_record, write_record
from experiments.suite.contexts import SOURCES, settings
from experiments.suite.mutants import ROOMS, ROOT, Mutant, Verdict, copied, draw, judge, located, preload

RESULTS = Path(__file__).parent / "results"
#: What the fast tests are, in the two processes that `make test` starts: a choice of markers, and where to look with how many workers.
SUITES = (
    ("openvino and not slow", lambda workers: ["tests/scheduler/delegates"]),
    ("not openvino and not slow", lambda workers: ["-n", str(workers), "--dist", "loadfile"]),
)
TESTS = ["-q", "-p", "no:randomly", "-p", "experiments.suite.contexts"]


def reach(folder: Path, workers: int) -> int:
    """Run the fast tests; coverage by test and the seconds of each go to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    site = folder / "site"
    site.mkdir(exist_ok=True)
    # processes that tests start are recorded too: Python runs this file at its start
    (site / "sitecustomize.py").write_text("import os\nif os.environ.get('COVERAGE_PROCESS_START'):\n    import coverage\n    coverage.process_startup()\n")  # fmt: skip
    (folder / "rc").write_text(settings(folder))
    path = os.pathsep.join([str(site), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"COVERAGE_PROCESS_START": str(folder / "rc"), "PYTHONPATH": path}
    status = 0
    for number, (chosen, where) in enumerate(SUITES):
        command = [sys.executable, "-m", "pytest", *TESTS, "-m", chosen, *where(workers), f"--junitxml={folder}/{number}.xml"]
        status |= subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    return status


def seconds_of_tests(folder: Path) -> dict[str, float]:
    """Seconds of each test of a run that passed, by node id."""
    times = {}
    for path in folder.glob("*.xml"):
        for case in ElementTree.parse(path).iter("testcase"):
            if not list(case):
                times[f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"] = float(case.get("time", 0))
    return times


class Reach:
    """Which tests reach which lines.

    Args:
        folder: What `reach` wrote.
        root: The sources that were run.
    """

    def __init__(self, folder: Path, root: Path):
        import coverage

        self.root = root
        self.seconds = seconds_of_tests(folder)
        self.whole = coverage.Coverage(data_file=str(folder / "combined"), branch=True)
        if not (folder / "combined").exists():
            self.whole.combine([str(path) for path in folder.glob("coverage.*")], keep=True)
            self.whole.save()
        self.whole.load()
        self.data = self.whole.get_data()

    def tests(self, file: str, line: int) -> dict[str, float]:
        """Tests that reach a line, with their seconds; a test that did not pass is none."""
        contexts = self.data.contexts_by_lineno(str(self.root / file)).get(line, [])
        return {name: self.seconds[name] for name in contexts if name in self.seconds}

    def rows(self) -> list[dict[str, object]]:
        """Statements and branches reached, a row a room."""
        counts = {room: Counter() for room in (*ROOMS, *SOURCES)}
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "report.json"
            self.whole.json_report(outfile=str(file), include=[f"{self.root}/{part}/*" for part in SOURCES])
            report = msgspec.json.decode(file.read_bytes())
        for name, part in report["files"].items():
            inside = Path(name).resolve().relative_to(self.root.resolve()).as_posix() if Path(name).is_absolute() else name
            for room in counts:
                if inside.startswith(room + "/"):
                    counts[room].update({key: part["summary"][key] for key in ("num_statements", "covered_lines", "num_branches", "covered_branches")})  # fmt: skip
        return [
            {
                "room": room,
                "statements": count["num_statements"],
                "reached %": round(100 * count["covered_lines"] / max(1, count["num_statements"]), 2),
                "branches": count["num_branches"],
                "branches reached %": round(100 * count["covered_branches"] / max(1, count["num_branches"]), 2),
            }
            for room, count in counts.items()
        ]


def judged(share: list[tuple[Mutant, Path, dict[str, float]]]) -> list[Verdict]:
    """The verdicts on one process's share of the mutants."""
    verdicts = []
    for mutant, copy, tests in share:
        verdicts.append(judge(mutant, copy, tests))
        sys.stderr.write(f"{verdicts[-1].state:9} {mutant.file}:{mutant.line} {mutant.after.strip()}\n")
    return verdicts


def strength(folder: Path, name: str, root: Path, mutants: list[Mutant], workers: int) -> None:
    """Judge each mutant in copies of `root` and write the record."""
    load = os.getloadavg()[0]
    known = Reach(folder, root)
    with tempfile.TemporaryDirectory() as temporary:
        copies = [copied(Path(temporary) / str(number), root) for number in range(workers)]

        reached = [known.tests(mutant.file, line) if (line := located(mutant, root)) else {} for mutant in mutants]
        work = [(mutant, copies[number % workers], tests) for number, (mutant, tests) in enumerate(zip(mutants, reached, strict=True))]
        shares = [work[number::workers] for number in range(workers)]
        with concurrent.futures.ProcessPoolExecutor(workers, initializer=preload) as pool:
            shares = list(pool.map(judged, shares))
        verdicts = [shares[number % workers][number // workers] for number in range(len(mutants))]
    write(name, known, verdicts, load)


def write(name: str, known: Reach, verdicts: list[Verdict], load: float) -> None:
    """Write the record of a suite."""
    states = Counter(verdict.state for verdict in verdicts)
    summary = {"tests": len(known.seconds), "seconds of tests": round(sum(known.seconds.values()), 1), "mutants": len(verdicts)}
    summary |= {state: states[state] for state in ("caught", "missed", "unreached", "gone")}
    tables = {
        "summary": [{"suite": name} | summary],
        "coverage": known.rows(),
        "mutants": [
            {"mutant": f"{v.mutant.file}:{v.mutant.line} {v.mutant.kind}", "occurrence": v.mutant.occurrence, "before": v.mutant.before, "after": v.mutant.after, "state": v.state, "tests": v.tests, "by": v.by}
            for v in verdicts
        ],
    }  # fmt: skip
    write_record(
        RESULTS / f"{name}.json",
        tables,
        source="measured",
        command=f"python -m experiments.suite.run strength DIR {name}",
        runs=1,
        load=load,
        notes=[f"Tests and code judged are those of the commit {revision(known.root)}."],
    )


def revision(root: Path) -> str:
    """The commit of a checkout."""
    return subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=True).stdout.strip()


def mutants_of(path: Path) -> list[Mutant]:
    """The mutants of an earlier record."""
    mutants = []
    for row in read_record(path).tables["mutants"]:
        place, kind = str(row["mutant"]).rsplit(" ", 1)
        file, line = place.rsplit(":", 1)
        mutants.append(Mutant(file, int(line), kind, str(row["before"]), str(row["after"]), int(row["occurrence"] or 0)))
    return mutants


def times(name: str, runs: int) -> None:
    """Time `make test` alone and beside two processes that compute, and write the record."""
    load = os.getloadavg()[0]
    rows = []
    for beside in (0, 2):
        for run in range(runs):
            others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(beside)]
            try:
                before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
                done = subprocess.run(["make", "test"], cwd=ROOT, capture_output=True, text=True, check=False)
                wall, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
            finally:
                for other in others:
                    other.kill()
                    other.wait()
            processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            last = [line for line in done.stdout.splitlines() if " passed" in line][-1:]
            rows.append({"run": f"{'quiet' if not beside else 'two busy loops beside'}, {run + 1}", "minutes": round(wall / 60, 2), "processor minutes": round(processor / 60, 2), "result": (last or ["none"])[0].strip("= "), "exit code": done.returncode})  # fmt: skip
    write_record(
        RESULTS / f"{name}.json",
        {"runs": rows},
        source="measured",
        command=f"python -m experiments.suite.run times {name}",
        runs=runs,
        load=load,
    )


def orders(name: str, runs: int, workers: int) -> None:
    """Run the fast tests in random orders, with one and two threads in turn, and add each run to the record."""
    path = RESULTS / f"{name}.json"
    rows = list(read_record(path).tables["runs"]) if path.exists() else []
    for _ in range(runs):
        seed, threads, load = random.SystemRandom().randrange(2**32), 1 + len(rows) % 2, os.getloadavg()[0]
        environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
        lines, start = [], time.monotonic()
        for chosen, where in SUITES:
            command = [sys.executable, "-m", "pytest", "-q", "-p", "randomly", f"--randomly-seed={seed}", "-m", chosen, *where(workers)]
            done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
            lines += [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR")) or " passed" in line]
        rows.append({"commit": revision(ROOT)[:12], "seed": seed, "threads": threads, "load": round(load, 1), "minutes": round((time.monotonic() - start) / 60, 2), "result": "; ".join(lines)})  # fmt: skip
        write_record(
            path, {"runs": rows}, source="measured", command=f"python -m experiments.suite.run orders {name}", runs=len(rows), load=load
        )
        # else the next run finds a page that differs from its record
        subprocess.run([sys.executable, "-m", "experiments.render"], cwd=ROOT, capture_output=True, check=True)


def main() -> int:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(prog="python -m experiments.suite.run", description=__doc__)
    parser.add_argument("what", choices=("reach", "strength", "times", "orders"))
    parser.add_argument("words", nargs="+", help="DIR, DIR NAME or NAME")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout whose tests are judged")
    parser.add_argument("--mutants", type=Path, help="a record whose mutants are taken")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=29)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--runs", type=int, default=1)
    options = parser.parse_args()
    if options.what == "reach":
        return reach(Path(options.words[0]).resolve(), options.workers)
    if options.what == "strength":
        mutants = mutants_of(options.mutants) if options.mutants else draw(options.count, options.seed, options.root)
        strength(Path(options.words[0]).resolve(), options.words[1], options.root.resolve(), mutants, options.workers)
    elif options.what == "times":
        times(options.words[0], options.runs)
    else:
        orders(options.words[0], options.runs, options.workers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
