"""Files made wrong on purpose through the real verbs: how does each end? `python -m experiments.chaos.mutated`."""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from experiments.records import Value, write_record
from tests.corpus.cases import COUNTS, judge, made, sound_files
from tests.corpus.pool import PATIENCE_S, Child
from tests.corpus.worker import MEMORY
from tests.stretch.cli.commands import LOOSE, spawn

HERE = Path(__file__).parent
#: Every so many of a kind also end a process of their own, as a person starts it.
FRESH = 50
#: Exit codes of the contract, in words.
ENDS = {0: "sound", 1: "refused", 2: "refused", 3: "refused", 4: "no design", 5: "no backend"}


def main(words: list[str] | None = None) -> int:
    """Run all files and write ``results/mutated.json``."""
    parser = argparse.ArgumentParser(prog="python -m experiments.chaos.mutated", description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="of the files of each kind, the first ones")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "mutated.json")
    options = parser.parse_args(words)
    load = os.getloadavg()[0]
    # as the tests do: bundles have a gpu, which would be driven where pyopencl is installed
    os.environ["NN_STRETCH_DRIVERS"] = "dsp"
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder)
        tiny = top / "made"
        wrote = spawn("", "branch", "tiny_resnet", "--device", "pixel6", "--weights", "none", *LOOSE, "--out", tiny)
        if wrote.code:
            raise SystemExit(wrote.err)
        (top / "sound").mkdir()
        sound = sound_files(top / "sound", tiny)
        child = Child(sound / "small", top / "log")
        try:
            rows = [tried(child, kind, round(options.share * count), sound, top / "cases") for kind, count in COUNTS.items()]
        finally:
            child.close()
    write_record(
        options.out,
        {"mutated": rows, "total": [total(rows)]},
        source="measured",
        command=f"python -m experiments.chaos.mutated --share {options.share:g}",
        runs=1,
        load=load,
        notes=[
            f"each file in a process that had warmed up, limited to {MEMORY >> 30} GiB more and {PATIENCE_S} s, replaced when it ends; "
            f"every {FRESH}th of a kind also in a process of its own",
            "wrong: a traceback, an unexpected error, a crash, a hang, a code outside of the contract, or a file written outside of the case's folder",
        ],
    )
    return 0 if not total(rows)["wrong"] else 1


def tried(child: Child, kind: str, count: int, sound: Path, top: Path) -> dict[str, Value]:
    """The files of one kind; how they ended."""
    ends: Counter[str] = Counter()
    began = time.perf_counter()
    for number in range(count):
        command, strayed = made(kind, number, sound, top)
        answer = child.ask(command)
        problem = judge(answer) or strayed()
        if not problem and number % FRESH == 0 and command[0] != "recipe":
            ended = spawn("", *command)
            answer = {"code": ended.code, "out": ended.out, "err": ended.err, "escaped": ""}
            ends["fresh"] += 1
            problem = judge(answer) or strayed()
        if problem:
            sys.stderr.write(f"{kind} {number}: {problem}\n")
        ends["wrong" if problem else ENDS[answer["code"] or 0]] += 1
        shutil.rmtree(top)
    row: dict[str, Value] = {"kind": kind, "files": count}
    row |= {key: ends[key] for key in ("refused", "sound", "no design", "no backend", "wrong")}
    return row | {"in a process of their own": ends["fresh"], "seconds": round(time.perf_counter() - began, 1)}


def total(rows: list[dict[str, Value]]) -> dict[str, Value]:
    """All kinds together."""
    return {"kind": "all", **{key: round(sum(float(row[key] or 0) for row in rows), 1) for key in rows[0] if key != "kind"}}


if __name__ == "__main__":
    sys.exit(main())
