"""Two networks at once on two processors of different kinds: `python -m experiments.real_processors.pairs here.toml FOLDER`.

Each pair is planned by `stretch search … --with …`, written by `stretch branch` and run by a `Scheduler`. Its baselines take turns
with it: requests one after the other on each processor alone, both networks in flight on the faster one, and each network whole
on a processor of its own.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from itertools import permutations
from pathlib import Path
from timeit import timeit
from typing import Any

import numpy as np

from experiments.real_processors.run import error, noise, within
from experiments.records import About, Facts, Row, write_record
from predictors.errors import StretchError
from predictors.host import is_host
from scheduler.bundle.load import Bundle, load_bundle
from scheduler.bundle.recommended import whole_on
from scheduler.checks.verify import random_input
from scheduler.placement.mapping import bundle_precisions
from scheduler.runtime.scheduler import Scheduler
from scheduler.runtime.session import Session

HERE = Path(__file__).parent
#: Pairs of networks with the side of the first one's input; the second has its default one. Large with small, and two of one size.
PAIRS = ("resnet50@224+mobilenet_v2", "efficientnet_b5@456+resnet50", "resnet50@448+mobilenet_v2", "timm:regnetx_040@224+resnet50")
#: Requests per network and round, inferences per network in flight, and warm-up rounds.
BURST, IN_FLIGHT, WARM = 8, 2, 3
PLANNED, ALONE = "planned together", "one after the other on the "


def planned(pair: str, profile: Path, folder: Path, words: Sequence[str]) -> tuple[dict[str, Any], list[Bundle], list[Bundle]]:
    """Return the search's answer, the networks as it plans them, and the networks as `stretch branch` writes them."""
    sized, _, second = pair.partition("+")
    first, _, side = sized.partition("@")
    size, options = ("--input", f"3x{side}x{side}"), ("--device", profile, "--lossless", *words)
    answer = within("search", first, "--with", second, *options, *size, "--set", "pair_goal=throughput", "--out", folder / "designs")
    together, written = [], []
    for network, input_size, part in zip((first, second), (size, ()), answer["designs"], strict=True):
        out, design = folder / network.rpartition(":")[2], ("--design", part["file"]) if part["file"] else ()
        branched = within("branch", network, *options, *input_size, *design, "--weights", "none", "--out", out)
        if "int8" in str(branched["precision"]):
            rounded, manifest = out.with_name(f"{out.name}_int8"), load_bundle(out).manifest
            pixels = next(tensor.shape[-1] for tensor in manifest.tensors if tensor.name == manifest.input)
            within("export", out, "--images", noise(folder, pixels), "--min-cosine", 0.5, "--out", rounded)
            out = rounded
        written.append(load_bundle(out))
        together.append(written[-1] if design else whole(written[-1], part["processors"][0]))
    return answer, together, written


def whole(bundle: Bundle, processor: str) -> Bundle:
    """Return the original of a bundle on one processor, in int8 on a CPU if its subgraphs are int8."""
    manifest = bundle.manifest
    int8 = is_host(processor) and "int8" in bundle_precisions(manifest).get(processor, ())
    file = (manifest.int8_controls if int8 else manifest.controls)["original"]
    return whole_on(bundle, "original", file, processor, "int8" if int8 else "fp32")


def in_flight(bundles: Sequence[Bundle], opened: ExitStack) -> Callable[[], object]:
    """Return a function that runs one round of requests of both networks, which take turns on their processors."""
    scheduler = opened.enter_context(Scheduler({str(number): bundle for number, bundle in enumerate(bundles)}, in_flight=IN_FLIGHT))
    inputs = {str(number): random_input(bundle) for number, bundle in enumerate(bundles)}
    return lambda: [future.result() for future in [scheduler.submit(x, name) for _ in range(BURST) for name, x in inputs.items()]]


def one_by_one(bundles: Sequence[Bundle], opened: ExitStack) -> Callable[[], object]:
    """Return a function that runs one round of requests, each after the previous one."""
    calls = [(opened.enter_context(Session(bundle)), random_input(bundle)) for bundle in bundles]
    return lambda: [session.run(x) for _ in range(BURST) for session, x in calls]


def compare(
    places: Sequence[str], together: Sequence[Bundle], written: Sequence[Bundle], rounds: int, end: float
) -> dict[str, list[float]]:
    """Return the seconds of each round of the planned pair and of its baselines, in turns; at least five rounds."""
    with ExitStack() as opened:
        alone = {place: [whole(bundle, place) for bundle in written] for place in places}
        runs = {f"{ALONE}{place}": one_by_one(bundles, opened) for place, bundles in alone.items()}
        best = min(alone, key=lambda place: timeit(runs[f"{ALONE}{place}"], number=3))
        runs = {PLANNED: in_flight(together, opened), **runs, f"both in flight on the {best}": in_flight(alone[best], opened)}
        for one, other in permutations(alone, 2):
            runs[f"{one} and {other}"] = in_flight((alone[one][0], alone[other][1]), opened)
        times: dict[str, list[float]] = {name: [] for name in runs}
        for number in range(WARM + rounds):
            if number >= WARM + 5 and time.monotonic() > end:
                break
            for name, burst in runs.items() if number % 2 else reversed(runs.items()):
                # requests keep coming: directly after a different round, caches are different and the GPU is idle
                burst()
                times[name].append(timeit(burst, number=1))
    return {name: taken[WARM:] for name, taken in times.items()}


def rows_of(pair: str, answer: dict[str, Any], times: Mapping[str, list[float]]) -> tuple[Row, list[Row]]:
    """Return the row of the planned pair against its best baseline, and one row per baseline."""
    rate = {name: 2 * BURST / statistics.median(taken) for name, taken in times.items()}
    best = max((name for name in rate if name.startswith(ALONE)), key=rate.__getitem__)
    best_other = max((name for name in rate if name != PLANNED), key=rate.__getitem__)
    predicted = 2 * answer["pairs_per_second"]
    row: Row = {
        "pair": pair,
        "plan": "; ".join(("branched on " if part["file"] else "") + " and ".join(part["processors"]) for part in answer["designs"]),
        "predicted a second": round(predicted, 1),
        "measured a second": round(rate[PLANNED], 1),
        "error %": error(predicted, rate[PLANNED]),
        "best single": best.removeprefix(ALONE),
        "speed-up over one after the other on it": round(rate[PLANNED] / rate[best], 3),
        "predicted speed-up": round(answer["speedup_over_sequential"], 3),
        "best other": best_other,
        "speed-up over that": round(rate[PLANNED] / rate[best_other], 3),
    }
    contenders: list[Row] = []
    for name, taken in times.items():
        p90 = round(1e3 * float(np.percentile(taken, 90)) / 2 / BURST, 3)
        times_of: Row = {"requests a second": round(rate[name], 1), "median ms of a request": round(1e3 / rate[name], 3), "p90 ms": p90}
        contenders.append({"pair, contender": f"{pair}: {name}"} | times_of)
    return row, contenders


def main() -> int:
    """Plan and run every pair, and write the record after each."""
    parser = argparse.ArgumentParser(prog="python -m experiments.real_processors.pairs", description=__doc__)
    parser.add_argument("profile", type=Path, help="the `here.toml` that `experiments.real_processors.run` made")
    parser.add_argument("folder", type=Path, help="where the bundles go")
    parser.add_argument("--pairs", nargs="+", default=PAIRS)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=300.0, help="after which no pair and no sixth round is begun")
    parser.add_argument("--search", nargs="*", default=[], help="further words for `stretch search` and `stretch branch`")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "pairs.json", help="the record")
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    rows, contenders, fewest = [], [], options.rounds
    for number, pair in enumerate(options.pairs):
        if (now := time.monotonic()) > end:
            break
        try:
            answer, together, written = planned(pair, options.profile, options.folder / f"pair{number}", options.search)
            # the remaining pairs share the remaining time
            until = now + (end - now) / (len(options.pairs) - number)
            times = compare(answer["processors"], together, written, options.rounds, until)
        except (StretchError, RuntimeError) as failure:
            sys.stderr.write(f"{pair}: {getattr(failure, 'message', failure)}\n")
            continue
        row, more = rows_of(pair, answer, times)
        rows.append(row)
        contenders += more
        fewest = min(fewest, *map(len, times.values()))
        sys.stderr.write(f"{row}\n")
        write_record(
            options.out,
            {"pairs": rows, "contenders": contenders},
            source="measured",
            command="python -m experiments.real_processors.pairs here.toml FOLDER",
            runs=fewest,
            interleaved=True,
            about={"pairs": About(columns=dict.fromkeys(("predicted a second", "predicted speed-up"), Facts(source="predicted")))},
            notes=[
                f"Exact designs or whole networks, random weights. A round: {BURST} requests of each network, {IN_FLIGHT} of each "
                "in flight, after a round that is not measured."
            ],
        )
    return 0 if rows else 1


if __name__ == "__main__":
    sys.exit(main())
