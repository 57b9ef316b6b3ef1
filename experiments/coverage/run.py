"""How many networks are captured, branched, and run equal to torch: `python -m experiments.coverage.run all|record`.

``all SET …`` tries every network of a set in a process of its own, one after the other, and goes on where it was
interrupted; ``one NETWORK`` tries one and prints what became of it; ``record`` adds what was tried to the record, in which
each network's row names the commit that it was tried at. Networks that the record has, on all processors and right, are not
tried again unless ``--again`` says so.
"""

import argparse
import json
import multiprocessing
import os
import queue
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from experiments.coverage.networks import SETS, write_smallest
from experiments.coverage.one import CONDITION, DEVICE, PROCESSORS, try_network
from experiments.gpu import facts
from experiments.records import Machine, Value, read_record, this_commit, write_record
from stretch.profile.environment import processor_name, version

HERE = Path(__file__).parent
RECORD = HERE / "results" / "coverage.json"
#: Maximum difference from torch, relative to the largest output, that counts as equal.
EQUAL = 1e-4
#: File with the facts of the machine that tries the first network.
MACHINE = "machine.json"
#: Maximum seconds per network.
LIMIT = 600


def main() -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["smallest", "one", "all", "record"])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--out", type=Path, default=Path("runs/coverage"))
    parser.add_argument("--jobs", type=int, default=1, help="networks at a time, each on a core of its own")
    parser.add_argument("--again", action="store_true", help="also those that the record says are right")
    options = parser.parse_args()
    if options.what == "smallest":
        write_smallest()
    elif options.what == "one":
        sys.stdout.write(json.dumps(try_network(options.names[0])) + "\n")
    elif options.what == "all":
        try_all(options.names or list(SETS), options.out, options.jobs, again=options.again)
    else:
        record(options.out)


def try_all(sets: Sequence[str], out: Path, jobs: int, *, again: bool) -> None:
    """Try networks without a file, each on one core, in a child of a process that has imported the packages that all need."""
    out.mkdir(parents=True, exist_ok=True)
    if not (out / MACHINE).exists():
        (out / MACHINE).write_text(json.dumps(facts() | {"processor": processor_name()}))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["torch", "torchvision.models", "timm", "onnxruntime", "onnx", "stretch.api", "scheduler.runtime.session"]
    )
    waiting = []
    for name in sets:
        (out / name).mkdir(parents=True, exist_ok=True)
        earlier = {} if again else recorded(name)
        done = {network for network, row in earlier.items() if all(right(row, key) for key in PROCESSORS)}
        waiting += [(network, out / name / f"{network.replace(':', '.')}.json") for network in SETS[name]() if network not in done]
    free: queue.SimpleQueue[int] = queue.SimpleQueue()
    for core in sorted(os.sched_getaffinity(0))[:jobs]:
        free.put(core)

    def tried(network: str, file: Path) -> dict[str, Any]:
        if file.exists():
            return json.loads(file.read_text())
        core = free.get()
        try:
            return _tried(context, network, file, core)
        finally:
            free.put(core)

    with ThreadPoolExecutor(jobs) as pool:
        for row in pool.map(lambda item: tried(*item), waiting):
            sys.stderr.write(f"{json.dumps(row)}\n")


def _tried(context: Any, network: str, file: Path, core: int) -> dict[str, Any]:
    """Return a network's row from a process on one core."""
    partial, load = file.with_suffix(".part"), os.getloadavg()[0]
    process = context.Process(target=_try, args=(network, partial, core))
    process.start()
    process.join(LIMIT)
    if process.is_alive():
        process.kill()
        process.join()
        row = {"failed": "time", "why": f"more than {LIMIT} s"}
    elif process.exitcode == 0:
        row = json.loads(partial.read_text())
    else:
        row = {"failed": "process", "why": f"it ended with {process.exitcode}"}
    commit = this_commit()
    row["commit"] = "" if commit is None else commit.hash[:7] + "+" * commit.dirty
    row |= {"network": network, "processor": processor_name(), "load": round(load, 2)}
    partial.write_text(json.dumps(row, indent=1))
    partial.replace(file)
    return row


def _try(network: str, file: Path, core: int) -> None:
    os.sched_setaffinity(0, {core})
    file.write_text(json.dumps(try_network(network)))


def recorded(name: str) -> dict[str, dict[str, Value]]:
    """Return the rows of a set in the record, by network; none without a record."""
    if not RECORD.exists():
        return {}
    earlier = read_record(RECORD)
    return {str(row["network"]): dict(row) for row in earlier.tables.get(name, [])}


def record(out: Path) -> None:
    """Add the tried networks to the record."""
    tables: dict[str, list[dict[str, Value]]] = {"sets": []}
    earlier = read_record(RECORD) if RECORD.exists() else None
    loads = [] if earlier is None else [earlier.load or 0.0]
    for name in SETS:
        rows = recorded(name)
        for file in sorted((out / name).glob("*.json")):
            tried = json.loads(file.read_text())
            rows[tried["network"]] = told(tried)
            loads.append(tried["load"])
        if rows:
            tables[name] = [rows[network] for network in sorted(rows)]
            tables["sets"].append(summary(name, tables[name]))
    where = json.loads((out / MACHINE).read_text())
    first_machine = Machine(where["processor"], where["cores"], where["memory_gib"], where["system"])
    machine, versions = (first_machine, where["versions"]) if earlier is None else (earlier.machine, earlier.versions)
    elsewhere = sorted({str(row["processor"]) for name in SETS for row in tables.get(name, [])} - {machine.processor})
    write_record(
        RECORD,
        tables,
        machine=machine,
        versions=versions,
        source="measured",
        command="python -m experiments.coverage.run all --jobs 15 && python -m experiments.coverage.run record",
        runs=1,
        load=max(loads),
        notes=[
            f"random weights; planned for {DEVICE} with its defaults on {' and on '.join(', '.join(item) for item in PROCESSORS.values())}; the bundle is written, "
            f"and run by the scheduler on the CPU; right: the output differs from the branched module's by at most {EQUAL:g} of the largest output",
            "branched: some segment has several branches, stretched or divided exactly",
            *([f"some networks were tried on another machine ({', '.join(elsewhere)}) with torch {version('torch')}"] if elsewhere else []),
            "each network's row names the commit that it was tried at, the processor, and the random weights (seed): the first of six for which torch's own result "
            f"moves by at most {CONDITION:g} with an input that is rounded otherwise (condition), else the best of them; load is the highest of any row",
        ],
    )


def summary(name: str, rows: Sequence[Mapping[str, Value]]) -> dict[str, Value]:
    """Return the counts of a set, from the rows of the record."""
    counts: dict[str, Value] = {"set": name, "of": len(SETS[name]()), "tried": len(rows)}
    counts["captured"] = sum(row["operators"] is not None for row in rows)
    for key in PROCESSORS:
        branched = [row for row in rows if right(row, key) and (row[f"{key}: branches"] or 0) > 1]
        counts |= {
            f"{key}: planned": sum(row[f"{key}: branches"] is not None for row in rows),
            f"{key}: right": sum(right(row, key) for row in rows),
            f"{key}: branched and right": len(branched),
            f"{key}: of these exact": sum(not row[f"{key}: stretched"] for row in branched),
        }
    return counts


def right(row: Mapping[str, Value], way: str) -> bool:
    """Return whether the bundle computed the same as torch; a distance that is not a number counts as different."""
    distance = row[f"{way}: distance"]
    return isinstance(distance, int | float) and distance <= EQUAL


def told(row: Mapping[str, Any]) -> dict[str, Value]:
    """Return a network's row of the record."""
    options = {way: row.get(way, {}) for way in PROCESSORS}
    failed = next((value for value in (row, *options.values()) if "failed" in value), None)
    return {
        "network": row["network"],
        "million parameters": round(row["parameters"] / 1e6, 1) if "parameters" in row else None,
        "operators": row.get("operators"),
        "opaque": row.get("opaque"),
        "outputs": row.get("outputs"),
        "seed": row.get("seed"),
        "condition": row.get("condition"),
        "capture s": row.get("capture s"),
        **{f"{way}: {key}": item.get(source) for way, item in options.items() for key, source in COLUMNS.items()},
        "peak MB": row.get("peak_mb"),
        "why not": f"{failed['failed']}: {failed['why']}" if failed else None,
        "commit": row["commit"],
        "processor": row["processor"],
    }


#: Columns for each set of processors.
COLUMNS = {
    "branches": "branches",
    "stretched": "stretched",
    "exact": "exact",
    "plan s": "plan",
    "transform s": "transform",
    "distance": "distance",
}


if __name__ == "__main__":
    main()
