"""Record and picture of what `experiments.equal_latency.run` left: `python -m experiments.equal_latency.summarise FOLDER`."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from experiments.equal_latency.ideas import IDEAS
from experiments.equal_latency.networks import FINE_TUNED, PROFILES, RECORD, SPEEDS, TRIED
from experiments.equal_latency.parents import PARENTS
from experiments.equal_latency.run import PLAIN, RESULTS, SEEDS, Job, recipe_note, recorded
from experiments.gpu import origin
from experiments.records import About, Facts, Row, read_record, write_record
from stretch.planning.cost.compare import BRANCHED, NO_CLEAR_WINNER

#: Networks that are compared with the best of the plain ones.
OTHERS = ("stage-wise", "pruned")
#: Marks of the networks in the picture: point fillings of `experiments.paper.chart`, and line styles or none.
SERIES = {"branches": ("full", "-"), "best plain": ("none", "--"), "half resolution": ("left", ""), "pruned": ("top", "")}


def interval(*samples: Sequence[float]) -> float | None:
    """Return half of the 95 % interval of a mean, or of a difference with any spreads (Student, Welch); None without repetitions."""
    if any(len(values) < 2 for values in samples):
        return None
    parts = [(float(np.var(values, ddof=1)) / len(values), len(values) - 1) for values in samples]
    variance = sum(part for part, _ in parts)
    if not variance:
        return 0.0
    freedom = variance**2 / sum(part**2 / count for part, count in parts)
    return float(stats.t.ppf(0.975, freedom)) * variance**0.5


def accuracies(rows: Sequence[Row], runs: Mapping[tuple[str, int], float]) -> dict[str, list[float]]:
    """Return the top-1 % of every seed by the network's name; networks without a finished run are left out."""
    known: dict[str, list[float]] = {}
    for (key, _), accuracy in runs.items():
        known.setdefault(key, []).append(accuracy)
    keys = {str(row["network"]): Job(str(row["parent"]), str(row["built"]), 0, 0).key for row in rows}
    return {name: known[key] for name, key in keys.items() if key in known}


def accuracy_row(row: Row, values: Sequence[float]) -> Row:
    """Return the row of a network with its measurements."""
    half = interval(values)
    measured = {
        "seeds": len(values),
        "top-1 %": round(float(np.mean(values)), 2),
        "95 % interval ±": None if half is None else round(half, 2),
    }
    return {"network": row["network"]} | measured | {key: value for key, value in row.items() if key not in ("network", "built")}


def best_plain(values: dict[str, list[float]], start: str) -> tuple[str, list[float]] | None:
    """Return the plain network with the highest mean among those with most seeds, and its accuracies; None if none was trained."""
    plains = {name: values[f"{start} {name}"] for name in PLAIN if f"{start} {name}" in values}
    return max(plains.items(), key=lambda item: (len(item[1]), float(np.mean(item[1]))), default=None)


def difference_row(parent: str, profile: str, speed: float, values: dict[str, list[float]], ms: dict[str, Any]) -> Row | None:
    """Return the comparison of branches with the best plain network of their latency; None if either was not trained."""
    start = f"{parent} {profile} {speed:g}"
    branches, plain = values.get(f"{start} branches"), best_plain(values, start)
    if branches is None or plain is None:
        return None
    which, best = plain
    half = interval(branches, best)
    means = {"parent": values.get(f"{parent} {profile} 1 parent"), "branches": branches, "best plain": best}
    means |= {name: values.get(f"{start} {name}") for name in OTHERS}
    row: Row = {"network": start, "seeds": min(len(branches), len(best)), "which plain": which}
    row |= {f"{name} %": None if mean_values is None else round(float(np.mean(mean_values)), 2) for name, mean_values in means.items()}
    row |= {"branches − best plain": round(float(np.mean(branches) - np.mean(best)), 2)}
    row |= {"95 % interval ±": None if half is None else round(half, 2)}
    return row | {"branches ms": ms[f"{start} branches"], "plain ms": ms[f"{start} {which}"]}


def agreement(recommended: str, row: Row) -> Row:
    """Return the planner's recommendation for a pair, and whether the measurement agrees with it.

    A recommended side may not be behind by more than the interval; without a recommendation, neither side may be.
    """
    gap, half = float(row["branches − best plain"] or 0), float(row["95 % interval ±"] or 0)
    plain_ahead, branches_ahead = gap < -half, gap > half
    wrong = {BRANCHED: plain_ahead, NO_CLEAR_WINNER: plain_ahead or branches_ahead}.get(recommended, branches_ahead)
    return {"recommended": "branches" if recommended == BRANCHED else recommended.replace("_", " "), "agrees": "no" if wrong else "yes"}


def mean_rows(values: dict[str, list[float]]) -> list[Row]:
    """Return the difference at each speed, over all parents and devices: the mean over seeds of each seed's mean.

    A side is ahead in a pair if the difference is larger than its interval.
    """
    rows: list[Row] = []
    for speed in SPEEDS:
        seeds: list[list[float]] = []
        ahead = {"branches ahead": 0, "plain ahead": 0}
        for parent, profile in product(PARENTS, PROFILES):
            start = f"{parent} {profile} {speed:g}"
            branches, plain = values.get(f"{start} branches", []), best_plain(values, start)
            if plain is not None and len(branches) == len(plain[1]) == len(SEEDS):
                seeds.append(list(np.array(branches) - np.array(plain[1])))
                gap = float(np.mean(seeds[-1]))
                if abs(gap) > (interval(branches, plain[1]) or 0.0):
                    ahead["branches ahead" if gap > 0 else "plain ahead"] += 1
        if seeds:
            half = interval(list(np.mean(seeds, axis=0)))
            row: Row = {"speed": f"{speed:g}", "pairs": len(seeds), "branches − best plain": round(float(np.mean(seeds)), 2)}
            rows.append(row | {"95 % interval ±": None if half is None else round(half, 2)} | ahead)
    return rows


def idea_rows(values: dict[str, list[float]], ideas: Sequence[str]) -> list[Row]:
    """Return each idea's difference from the planner's branches and from the best plain network."""
    rows: list[Row] = []
    for parent, profile, speed, idea in product(PARENTS, PROFILES, SPEEDS, ideas):
        start = f"{parent} {profile} {speed:g}"
        tried, plain = values.get(f"{start} {idea}"), best_plain(values, start)
        if tried is None or plain is None:
            continue
        row: Row = {"network": f"{start} {idea}", "seeds": len(tried), "top-1 %": round(float(np.mean(tried)), 2)}
        for name, others in (("branches", values[f"{start} branches"]), ("best plain", plain[1])):
            half = interval(tried, others)
            row |= {f"− {name}": round(float(np.mean(tried) - np.mean(others)), 2)}
            row |= {f"± {name}": None if half is None else round(half, 2)}
        rows.append(row)
    return rows


def idea_means(rows: Sequence[Row], ideas: Sequence[str]) -> list[Row]:
    """Return the gains of each idea at the speed at which all are tried, as means over its originals and devices."""
    means: list[Row] = []
    for idea in ideas:
        of_idea = [row for row in rows if str(row["network"]).endswith(f" {TRIED:g} {idea}")]
        if of_idea:
            gains: Row = {
                name: round(float(np.mean([float(row[name] or 0) for row in of_idea])), 2) for name in ("− branches", "− best plain")
            }
            means.append({"network": idea, "pairs": len(of_idea), "fewest seeds": min(int(row["seeds"] or 0) for row in of_idea)} | gains)
    return means


def draw(rows: Sequence[Row], differences: Sequence[Row]) -> str:
    """Draw accuracy over predicted latency, with one panel per original and device."""
    from matplotlib.figure import Figure

    from experiments.paper.chart import COLOURS, WIDTH, as_svg, handle, legend, marked

    parents = [parent for parent in PARENTS if any(row["parent"] == parent for row in rows)]
    figure = Figure(figsize=(WIDTH, 2.6 * len(parents) + 0.8), layout="constrained")
    panels = figure.subplots(len(parents), len(PROFILES), squeeze=False)
    best = {str(row["network"]): str(row["which plain"]) for row in differences}
    for axes, (parent, profile) in zip(panels.flat, product(parents, PROFILES), strict=True):
        by_name = {
            (float(row["speed"] or 0), str(row["contender"])): row for row in rows if (row["parent"], row["profile"]) == (parent, profile)
        }
        for series, (filling, line) in SERIES.items():
            names = {speed: best.get(f"{parent} {profile} {speed:g}") if series == "best plain" else series for speed in SPEEDS}
            points = [by_name[speed, name] for speed, name in names.items() if name is not None and (speed, name) in by_name]
            at = [float(row["predicted ms"] or 0) for row in points]
            values = [float(row["top-1 %"] or 0) for row in points]
            if line:
                axes.plot(at, values, color=COLOURS["measured"], linewidth=0.8, linestyle=line, zorder=1)
            for row, x, y in zip(points, at, values, strict=True):
                half = float(row["95 % interval ±"] or 0)
                axes.plot([x, x], [y - half, y + half], color=COLOURS["measured"], linewidth=1.2, zorder=2)
                marked(axes, x, y, "measured", filling)
        if (1.0, "parent") in by_name:
            axes.axhline(float(by_name[1.0, "parent"]["top-1 %"] or 0), color="#777777", linestyle=(0, (5, 3)), linewidth=1)
        axes.set_title(f"{parent}, {profile}", loc="left", fontsize=10, fontweight="bold")
        axes.set_xlabel("ms, predicted", fontsize=9)
        axes.set_ylabel("top-1 %", fontsize=9)
        axes.grid(color="#dddddd")
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    legend(figure, [handle(panels[0, 0], "measured", series, filling) for series, (filling, _) in SERIES.items()])
    description = "Accuracy over predicted latency of branches, plain networks, branches of which one has half the resolution, and pruned ones, with 95 % intervals; the dashed line is the original."
    return as_svg("equal_latency", "Accuracy at equal latency", description, figure)


def main() -> int:
    """Write the record and the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--networks", type=Path, default=RECORD)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    runs = [run for file in sorted(options.folder.glob("*.json")) if (run := json.loads(file.read_text()))["done"]]
    epochs = {run["epochs"] for run in runs}
    if len(epochs) != 1:
        sys.stderr.write(
            f"error: {options.folder} has finished runs of {sorted(epochs) or 'no'} epochs, a record has those of one number\n"
        )
        return 2
    # every run stays in the record: originals are trained again for the pruned networks, which start from their weights
    (trained_for,), recipe = epochs, runs[0]["recipe"]
    earlier = recorded(options.out, trained_for, recipe["batch"])
    every = dict(sorted(({(run["key"], run["seed"]): round(100 * run["accuracy"], 2) for run in runs} | earlier).items()))
    networks = read_record(options.networks)
    rows = networks.tables["networks"]
    values, ms = accuracies(rows, every), {str(row["network"]): row["predicted ms"] for row in rows}
    table = [accuracy_row(row, values[str(row["network"])]) for row in rows if str(row["network"]) in values]
    cases = product(PARENTS, PROFILES, SPEEDS)
    differences = [row for case in cases if (row := difference_row(*case, values, ms)) is not None]
    recommended = {str(row["network"]): str(row["recommended"]) for row in networks.tables["recommended"]}
    differences = [row | agreement(recommended[str(row["network"])], row) for row in differences]
    tables = {"accuracy": table, "differences": differences, "means": mean_rows(values)}
    agreeing = sum(row["agrees"] == "yes" for row in differences)
    ideas, longer = ("whole width", *IDEAS), ("pruned", *FINE_TUNED)
    tables |= {
        "ideas": idea_rows(values, ideas),
        "longer": idea_means(idea_rows(values, longer), longer),
        "agreement": [{"of": "planner", "pairs": len(differences), "agreeing": agreeing}],
    }
    tables |= {"runs": [{"run": key, "seed": seed, "top-1 %": accuracy} for (key, seed), accuracy in every.items()]}
    tables |= {"gains": idea_means(tables["ideas"], ideas)}
    predicted = Facts(source="predicted")
    about = {
        "accuracy": About(columns=dict.fromkeys(("predicted ms", "over best single"), predicted)),
        "differences": About(columns=dict.fromkeys(("branches ms", "plain ms"), predicted)),
    }
    numbers = ", ".join(f"{key} {value:g}" for key, value in recipe.items() if key != "batch")
    write_record(
        options.out,
        {name: current for name, current in tables.items() if current},
        source="measured",
        command="python -m experiments.equal_latency.run --data cifar.npz --out OUT && python -m experiments.equal_latency.summarise OUT",
        runs=min(len(current) for current in values.values()),
        about={name: item for name, item in about.items() if tables[name]},
        **origin(runs),
        notes=[
            f"{recipe_note(trained_for, recipe['batch'])}{numbers}, SGD with half-cosine; CIFAR-10 re-encoded as JPEG, accuracy after the last epoch",
            *networks.notes,
            "best plain: of shallower, narrower and both, those trained with most seeds, the one of the highest mean, which favours plain networks",
            "pruned: the trained original, by Torch-Pruning to the shape of the narrower one, and trained for as many epochs again; fine-tuned: the branches and the shallower network with weights of the trained original, trained as long as the pruned one",
        ],
    )
    options.out.parent.with_name("curve.svg").write_text(draw(table, differences)) if table else None
    return 0


if __name__ == "__main__":
    sys.exit(main())
