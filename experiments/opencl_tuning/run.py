"""Gain of tuning on this machine: `python -m experiments.opencl_tuning.run BUNDLE`."""

import argparse
import tempfile
import time
from pathlib import Path

from experiments.command import program, stretch
from experiments.records import About, Facts, Value, write_record

HERE = Path(__file__).parent
MODES = ("fast", "exhaustive", "schedule")


def tuned(bundle: Path, mode: str, budget: float, cache: str) -> tuple[dict[str, Value], str]:
    """Tune in one mode from an empty cache; return the sums over all kernels before and after, and the device."""
    start = time.monotonic()
    data = stretch("profile", "tune", bundle, "--mode", mode, "--budget", budget / 60, XDG_CACHE_HOME=cache)
    row: dict[str, Value] = {
        "mode": mode,
        "kernels": len(data["kernels"]),
        "changed": sum(bool(kernel["choice"]) and any(kernel["choice"].values()) for kernel in data["kernels"]),
        "before_ms": round(data["before_ms"], 2),
        "after_ms": round(data["after_ms"], 2),
        "before_over_after": round(data["before_ms"] / data["after_ms"], 3),
        "seconds": round(time.monotonic() - start, 1),
        "budget_s": budget,
    }
    return row, data["device"]


def main(words: list[str] | None = None) -> None:
    """Tune a bundle in each mode and write ``results/host.json``."""
    parser = argparse.ArgumentParser(prog="python -m experiments.opencl_tuning.run", description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--budget", type=float, default=100.0, help="seconds for each mode")
    options = parser.parse_args(words)
    rows = []
    for mode in MODES:
        with tempfile.TemporaryDirectory() as cache:
            row, device = tuned(options.bundle, mode, options.budget, cache)
            rows.append(row)
    write_record(
        HERE / "results" / "host.json",
        {"modes": rows},
        source="measured",
        command=f"python -m experiments.opencl_tuning.run {options.bundle.name} --budget {options.budget:g}",
        runs=8,
        interleaved=False,
        about={"modes": About(columns=dict.fromkeys(("before_ms", "after_ms", "before_over_after"), Facts(interleaved=True)))},
        notes=[f"{device}; sums of the least of eight times of every kernel of the gpu's subgraphs, each mode from an empty cache."],
    )


if __name__ == "__main__":
    program(main)
