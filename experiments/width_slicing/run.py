"""Networks of half the width, by nn-stretch and by Torch-Pruning: `PYTHONPATH=FOLDER:. python -m experiments.width_slicing.run all|one|record`.

Torch-Pruning lies in a folder of its own, since it is no requirement of nn-stretch, only of this experiment
(`python -m pip install --target FOLDER --no-deps torch-pruning==1.6.1`). ``all NAME …`` tries networks, by default all of torchvision's
classifiers and one of each of timm's modules, each in a process of its own, one after the other, and goes on where it
was interrupted; ``one NAME`` tries one; ``record`` makes the record of what was tried.
"""

import argparse
import json
import multiprocessing
import os
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from experiments.coverage.networks import SETS
from experiments.records import Value, write_record
from experiments.width_slicing.one import EQUAL, ROUNDS, try_network
from predictors.errors import MissingBackendError

HERE = Path(__file__).parent
#: Seconds that a network may take.
LIMIT = 900


def main() -> int:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["one", "all", "record"])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--out", type=Path, default=Path("runs/width_slicing"))
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of both, in turns")
    options = parser.parse_args()
    if options.what == "one":
        sys.stdout.write(json.dumps(try_network(options.names[0], options.rounds)) + "\n")
    elif options.what == "all":
        try_all(options.names or [name for names in SETS.values() for name in names()], options.out, options.rounds)
    else:
        record(options.out)
    return 0


def try_all(names: Sequence[str], out: Path, rounds: int) -> None:
    """Try what has no file yet, each network in a process of its own.

    Raises:
        MissingBackendError: If Torch-Pruning is not there.
    """
    pruning()
    out.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("spawn")
    for name in names:
        file = out / f"{name.replace(':', '.')}.json"
        if not file.exists():
            sys.stderr.write(json.dumps(_tried(context, name, file, rounds)) + "\n")


def pruning() -> str:
    """The version of Torch-Pruning.

    Raises:
        MissingBackendError: If it is not there.
    """
    try:
        return version("torch-pruning")
    except PackageNotFoundError as error:
        raise MissingBackendError(
            "this experiment prunes with Torch-Pruning, which is not installed", "see the first lines of experiments/width_slicing/run.py"
        ) from error


def _tried(context: Any, name: str, file: Path, rounds: int) -> dict[str, Any]:
    partial, load = file.with_suffix(".part"), os.getloadavg()[0]
    partial.unlink(missing_ok=True)
    process = context.Process(target=_try, args=(name, partial, rounds))
    process.start()
    process.join(LIMIT)
    row: dict[str, Any] = {"network": name}
    if process.is_alive():
        process.kill()
        process.join()
        row = json.loads(partial.read_text()) if partial.exists() else row
        late = next((side for side in ("ours", "theirs") if side not in row), "theirs")
        row[late] = {"failed": f"more than {LIMIT} s"}
    elif process.exitcode == 0:
        row = json.loads(partial.read_text())
    else:
        row["failed"] = f"it ended with {process.exitcode}"
    partial.write_text(json.dumps({**row, "load": round(load, 2)}, indent=1))
    partial.replace(file)
    return row


def _try(name: str, file: Path, rounds: int) -> None:
    def note(row: dict[str, Any]) -> None:
        file.write_text(json.dumps(row))

    note(try_network(name, rounds, note))


def record(out: Path) -> None:
    """Make the record of the networks that were tried."""
    rows = [json.loads(file.read_text()) for file in sorted(out.glob("*.json"))]
    write_record(
        HERE / "results" / "width_slicing.json",
        {"sets": summary(rows), "networks": [told(row) for row in rows]},
        source="measured",
        command="python -m experiments.width_slicing.run all && python -m experiments.width_slicing.run record",
        runs=min(row.get("rounds", ROUNDS) for row in rows),
        interleaved=True,
        load=max(row["load"] for row in rows),
        notes=[
            f"random weights; half of every channel group but the input's and the classes'; Torch-Pruning {pruning()}, MetaPruner with the L1 norm, "
            "heads of timm's attention told as its examples do",
            f"ours counts where the narrow network runs, has fewer parameters and differs from the masked parent by at most {EQUAL:g} of the largest output; "
            "theirs where the network runs, is finite and has fewer parameters",
            "seconds of processor time on one thread: of ours capture, channel groups and the narrow module; of theirs the dependency graph and one pruning; median of as many rounds as "
            "the row says, both in turns",
        ],
    )


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Value]]:
    """Counts, of all networks and of families that the pages speak of."""
    sets = {
        "torchvision": [row for row in rows if ":" not in row["network"]],
        "timm": [row for row in rows if ":" in row["network"]],
        "DenseNet": [row for row in rows if "densenet" in row["network"]],
    }
    return [_counts(name, item) for name, item in sets.items() if item]


def _counts(name: str, rows: Sequence[dict[str, Any]]) -> dict[str, Value]:
    ours, theirs = ([row for row in rows if "seconds" in row.get(key, {})] for key in ("ours", "theirs"))
    both = [row for row in ours if row in theirs]
    return {
        "set": name,
        "networks": len(rows),
        "ours": len(ours),
        "Torch-Pruning": len(theirs),
        "only ours": len(ours) - len(both),
        "only Torch-Pruning": len(theirs) - len(both),
        "ours faster": sum(row["ours"]["seconds"] < row["theirs"]["seconds"] for row in both),
        "of": len(both),
    }


def told(row: dict[str, Any]) -> dict[str, Value]:
    """A network's row of the record."""
    sides = {"ours": row.get("ours", {}), "Torch-Pruning": row.get("theirs", {})}
    mapping: dict[str, Value] = {"network": row["network"]}
    for name, side in sides.items():
        mapping |= {f"{name}, s": side.get("seconds"), f"{name}: parameters left": side.get("kept")}
    mapping["rounds"] = row.get("rounds")
    mapping["distance"] = sides["ours"].get("distance")
    why = [f"{name}: {side['failed']}" for name, side in sides.items() if "failed" in side]
    mapping["why not"] = row.get("failed") or "; ".join(why) or None
    return mapping


if __name__ == "__main__":
    sys.exit(main())
