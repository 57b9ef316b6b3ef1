"""What the planner promises for the six networks of paper 003: `python -m experiments.simulated_speedup.run`.

Each network is planned in a process of its own, and every plan is written down as soon
as it is there: a run that was cut short goes on where it stopped, unless the code changed.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

import msgspec

from experiments.lossless.run import MODELS, graph_of
from experiments.records import ROOT, Row, this_commit, write_record
from experiments.simulated_speedup.cases import cases_of, planned_row
from experiments.simulated_speedup.summary import bounds, means, networks, varied

HERE = Path(__file__).parent
#: Where the rows of a run lie while it goes on.
PARTS = ROOT / "runs" / "simulated_speedup"


class Part(msgspec.Struct):
    """What is planned already of a network."""

    commit: str | None  # The code that planned it.
    rows: dict[str, Row] = {}  # One a case, by its name.


def part_of(path: Path) -> Part:
    """What a file holds that the code as it is wrote; nothing where there is none, or another code's."""
    result = this_commit()
    commit = result.hash if result is not None and not result.dirty else None
    if commit is not None and path.exists():
        known = msgspec.json.decode(path.read_bytes(), type=Part)
        if known.commit == commit:
            return known
    return Part(commit)


def plan_network(model: str, path: Path) -> None:
    """Plan every case of a network that is not planned yet.

    Args:
        model: Its name.
        path: File of its rows.
    """
    part = part_of(path)
    graph = None
    path.parent.mkdir(parents=True, exist_ok=True)
    for case in cases_of(model):
        if case.name in part.rows:
            continue
        graph = graph or graph_of(model)
        row = part.rows[case.name] = planned_row(case, graph)
        partial = path.with_name(f".{path.name}.part")
        partial.write_bytes(msgspec.json.encode(part))
        partial.replace(path)
        sys.stderr.write(f"{case.name}: {row['speed-up']}, over the sequential network {row['over sequential']}\n")


def main() -> int:
    """Plan every network, and write the record; gives the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS), help="networks, separated by commas")
    parser.add_argument("--one", help="plan this network alone, in this process, and write no record")
    parser.add_argument("--parts", type=Path, default=PARTS, help="folder of what is planned already")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "speedup.json", help="the record")
    options = parser.parse_args()
    if options.one:
        plan_network(options.one, _file(options.parts, options.one))
        return 0
    load, models = os.getloadavg()[0], options.models.split(",")
    rows: dict[str, Row] = {}
    for model in models:
        command = [sys.executable, "-m", "experiments.simulated_speedup.run", "--one", model, "--parts", str(options.parts)]
        subprocess.run(command, check=True, cwd=ROOT)
        rows |= msgspec.json.decode(_file(options.parts, model).read_bytes(), type=Part).rows
    write_record(
        options.out,
        {
            "means": means(rows, models),
            "varied": varied(rows, models),
            "bounds": bounds(rows, models),
            "networks": networks(rows, models),
            "cases": list(rows.values()),
        },
        source="predicted",
        command="python -m experiments.simulated_speedup.run",
        runs=None,
        load=load,
        notes=[
            "Every time is the planner's, from a profile and its links; nothing ran, and nothing was measured on a phone.",
            "Speed-ups are over the original on the best single processor, core set and precision at least as wide, and over the fastest sequential network of the same multiply-accumulates.",
            "`exact` designs compute the original's output; `stretched` ones are other networks, which want training; `mixed` ones may have segments of every kind. Merged: several stages may become one segment where that is faster.",
            "`low` and `high` are the ends of the 90 % interval: fits, links and contention are drawn within their intervals.",
            "The ideal split divides the original over the processors without any loss. The bound is the longest chain of the original's kernels, each on its fastest processor, or the least time in which all of them can be computed, whichever is longer: no schedule that leaves kernels whole is faster, exchanges and contention left out. A stretched or divided design has other kernels, and may be below both.",
        ],
    )
    sys.stderr.write(f"{options.out} written; fill the pages with python -m experiments.render\n")
    return 0


def _file(parts: Path, model: str) -> Path:
    return parts / f"{model.replace(':', '_')}.json"


if __name__ == "__main__":
    sys.exit(main())
