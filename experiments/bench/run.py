"""Whether `stretch compare --measure` repeats: the same files timed again and again in new processes: ``python -m experiments.bench.run``."""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.host_profile.run import stretch
from experiments.records import Row, write_record

HERE = Path(__file__).parent
MODEL, DEVICE = "resnet18", "pixel6"


def main() -> int:
    """Measure and write ``results/repeated.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("runs/bench"), help="folder for the bundle")
    parser.add_argument("--bundle", type=Path, help="an own bundle; by default one of resnet18 is made")
    parser.add_argument("--repetitions", type=int, default=10, help="measurements after the first")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "repeated.json")
    options = parser.parse_args()
    bundle = options.bundle or options.work / f"{MODEL}_{DEVICE}"
    if not bundle.exists():
        options.work.mkdir(parents=True, exist_ok=True)
        stretch("branch", MODEL, "--device", DEVICE, "--processors", "cpu,gpu", "--weights", "none", "--out", str(bundle))
    load = os.getloadavg()[0]
    what = [str(bundle / "model.onnx"), str(bundle)]
    effort = ["--rounds", str(options.rounds), "--starts", str(options.starts)]
    measured = [stretch("compare", "--measure", *what, *effort, "--seed", str(seed)) for seed in range(1 + options.repetitions)]
    current = f" --bundle {options.bundle.name}" if options.bundle else ""
    write_record(
        options.out,
        {"repeated": rows(measured), "measurements": conditions(measured)},
        source="measured",
        command=f"python -m experiments.bench.run --repetitions {options.repetitions} --rounds {options.rounds} --starts {options.starts}{current}",
        runs=options.rounds * options.starts,
        interleaved=True,
        load=load,
        notes=[
            f"{1 + options.repetitions} measurements, each a process of its own with {options.starts} starts of {options.rounds} rounds; "
            "contenders took turns within each",
            "within the first's: medians of the later ones in the interval in which the first expects another measurement; "
            "of all pairs: the same for each measurement and each other one",
        ],
    )
    return 0


def rows(measured: Sequence[Mapping[str, Any]]) -> list[Row]:
    """How often each contender's median lies where another measurement expects it.

    Args:
        measured: What `stretch compare --measure` printed, the first one first; contenders are those of the first.
    """
    result: list[Row] = []
    for contender in measured[0]["contenders"]:
        summaries = [next(item["summary"] for item in one["contenders"] if item["name"] == contender["name"]) for one in measured]
        pairs = [holds(a, b) for i, a in enumerate(summaries) for j, b in enumerate(summaries) if i != j]
        medians = [summary["median_ms"] for summary in summaries]
        result.append(
            {
                "contender": contender["name"],
                "median ms of the first": round(medians[0], 4),
                "least": round(min(medians), 4),
                "largest": round(max(medians), 4),
                "from": _rounded(summaries[0]["repeat_low_ms"]),
                "to": _rounded(summaries[0]["repeat_high_ms"]),
                "later ones": len(summaries) - 1,
                "within the first's": sum(holds(summaries[0], summary) for summary in summaries[1:]),
                "of all pairs": round(sum(pairs) / len(pairs), 3) if pairs else None,
                "never steady": sum(
                    not next(item["steady"] for item in one["contenders"] if item["name"] == contender["name"]) for one in measured
                ),
            }
        )
    return result


def holds(summary: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether another measurement's median lies where this one expects it; not, where it has no interval."""
    low, high = summary["repeat_low_ms"], summary["repeat_high_ms"]
    return low is not None and high is not None and low <= other["median_ms"] <= high


def conditions(measured: Sequence[Mapping[str, Any]]) -> list[Row]:
    """What the machine was like in each measurement."""
    return [
        {
            "measurement": number,
            "seconds": round(one["seconds"], 1),
            "rounds to warm up": sum(one["warmup"]),
            "load before": one["conditions"]["load_before"],
            "share of the cores' time that they computed": one["conditions"]["busy"],
            "share that the host gave to others": one["conditions"]["stolen"],
            "warnings": len(one["warnings"]),
        }
        for number, one in enumerate(measured, start=1)
    ]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


if __name__ == "__main__":
    sys.exit(main())
