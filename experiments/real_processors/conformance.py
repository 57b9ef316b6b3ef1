"""Delegates of a GPU against the reference, operator by operator, and sessions again and again: `python -m experiments.real_processors.conformance`.

Runs the conformance suite of the tests, in which a test fails whose every drawn case a delegate refuses: such an operator is named as
refused. Sessions are opened, run and closed in a process of their own, whose exit status shows a crash.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

import numpy as np

from experiments.records import ROOT, Row, write_record

HERE = Path(__file__).parent
TESTS = ROOT / "tests" / "scheduler" / "delegates"
#: Messages of hypothesis if every case was refused.
REFUSED = re.compile(r"Unsatisf|FailedHealthCheck|filter_too_much")
OUTCOMES = ("passed", "refused", "failed", "skipped")


def sessions(delegate: str, count: int) -> int:
    """Open, run and close sessions, and print the number of results equal to the first one after each."""
    from scheduler.checks.verify import random_input
    from scheduler.runtime.session import Session
    from tests.scheduler.bundles import two_branches

    with tempfile.TemporaryDirectory() as folder:
        bundle, results = two_branches(Path(folder) / "bundle"), []
        for _ in range(count):
            with Session(bundle, {"gpu": delegate}) as session:
                results.append(session.run(random_input(session.bundle)))
                assert not session.replaced, session.replaced
            alike = sum(np.allclose(result, results[0], rtol=1e-5, atol=1e-5) for result in results)
            sys.stdout.write(f"{alike}\n")
            sys.stdout.flush()
    return int(alike != count)


def ran(words: list[str], seconds: float) -> tuple[int | None, str, str]:
    """Run a Python program; return its status (None after a timeout), its output and its errors."""
    try:
        done = subprocess.run([sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as late:
        return None, (late.stdout or b"").decode(), f"not over after {seconds:.0f} s"
    return done.returncode, done.stdout, done.stderr


def session_row(delegate: str, count: int, seconds: float) -> Row:
    """Return the row of sessions in a separate process."""
    status, output, errors = ran([f"{__package__}.conformance", "--only-sessions", delegate, "--sessions", str(count)], seconds)
    why = "" if status == 0 else (errors.strip().splitlines() or ["crashed"])[-1]
    return {
        "delegate": delegate,
        "sessions": count,
        "equal results": int((output.split() or ["0"])[-1]),
        "exit status": status,
        "error": why,
    }


def cases(file: Path) -> list[tuple[str, str, str]]:
    """Return name, outcome and reason of each test in a report of pytest."""
    rows = []
    for case in ET.parse(file).iter("testcase"):
        problem = next((part for part in case if part.tag != "system-out"), None)
        message, text = ("", "") if problem is None else (problem.get("message", ""), problem.text or "")
        failed = "refused" if REFUSED.search(message + text) else "failed"
        outcome = "passed" if problem is None else "skipped" if problem.tag == "skipped" else failed
        rows.append((str(case.get("name")), outcome, " ".join(message.split())[:200]))
    return rows


def suite(what: str, words: list[str], seconds: float) -> tuple[Row, list[Row]]:
    """Run some tests; return the row of their counts, and the tests that did not pass."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.xml"
        # a worker that crashes or hangs is replaced, and its test counts as failed
        options = ["-q", "-p", "no:cacheprovider", "-W", "default", "--tb=short", "--runslow", f"--junitxml={file}"]
        options += ["--timeout=120", "--timeout-method=thread"]
        status, output, errors = ran(["pytest", *options, *words], seconds)
        sys.stderr.write(f"{what}: {output[-1500:]}{errors[-500:]}\n")
        rows = cases(file) if file.exists() else []
    counts = Counter(outcome for _, outcome, _ in rows)
    row: Row = {"suite": what} | {name: counts[name] for name in OUTCOMES} | {"exit status": status}
    return row, [{"test": f"{what}: {name}", "outcome": outcome, "reason": why} for name, outcome, why in rows if outcome != "passed"]


def main() -> int:
    """Run everything, and write the record."""
    parser = argparse.ArgumentParser(prog="python -m experiments.real_processors.conformance", description=__doc__)
    parser.add_argument("--delegates", nargs="+", default=["opencl", "vulkan"])
    parser.add_argument("--sessions", type=int, default=100, help="opened, run and closed for each delegate")
    parser.add_argument("--only-sessions", metavar="DELEGATE", help="do that in this process, and nothing else")
    parser.add_argument("--workers", type=int, default=min(8, len(os.sched_getaffinity(0))), help="processes that share the tests")
    parser.add_argument("--seconds", type=float, default=240.0, help="for each suite, and for the sessions of each delegate")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "conformance.json", help="the record")
    options = parser.parse_args()
    if options.only_sessions:
        return sessions(options.only_sessions, options.sessions)
    from scheduler.delegates import delegates, load_plugins
    from scheduler.delegates.opencl.device import find_device, unavailable_reason

    load_plugins()
    suites, rest, opened = [], [], []
    for name in options.delegates:
        if problem := delegates.get(name).unavailable():
            suites.append({"suite": f"{name}: {problem}"} | dict.fromkeys((*OUTCOMES, "exit status")))
            continue
        opened.append(session_row(name, options.sessions, options.seconds))
        runs = {"operators": [str(TESTS / "test_conformance.py"), "-k", name]}
        if name == "opencl":
            runs["own tests"] = [str(TESTS / "opencl")]
        for what, words in runs.items():
            row, more = suite(f"{name}, {what}", [*words, "-n", str(options.workers)], options.seconds)
            suites.append(row)
            rest += more
    device = unavailable_reason() or f"{find_device().name.strip()}, driver {find_device().driver_version}"
    write_record(
        options.out,
        {name: rows for name, rows in {"suites": suites, "sessions": opened, "not_passed": rest}.items() if rows},
        source="measured",
        command="python -m experiments.real_processors.conformance",
        runs=1,
        notes=[f"OpenCL: {device}. Refused: every case that was drawn of an operator; a plan leaves it to the CPU."],
    )
    return int(any(row["failed"] for row in suites) or any(row["exit status"] != 0 for row in opened))


if __name__ == "__main__":
    sys.exit(main())
