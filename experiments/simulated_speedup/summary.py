"""Tables of a page from the rows of all cases: a network a row, and geometric means against the goals."""

from collections.abc import Mapping, Sequence
from math import exp, log

from experiments.lossless.run import DEVICES, MODELS, PROFILES
from experiments.records import Row, Value
from experiments.simulated_speedup.cases import DESIGNS, MERGED, STAGES, VARIED, Case
from experiments.simulated_speedup.devices import CHANGES, changes_for

#: What merged designs were to reach in the mean: over the best single processor, and over the sequential network of the same MACs.
GOALS = {("mi9", "cpu,dsp"): (1.7, 1.45), ("mi9", "cpu,gpu"): (1.75, 1.45), ("mi9", "cpu,gpu,dsp"): (2.0, 1.65)}

#: Rows of cases by their name.
Rows = Mapping[str, Row]


def networks(rows: Rows, models: Sequence[str]) -> list[Row]:
    """Every network on every device: speed-ups of each kind of design, and what the merged mixed one is."""
    result = []
    for model in models:
        for which in PROFILES:
            for place in DEVICES:
                current = {key: rows[Case(model, which, *place, *key).name] for key in DESIGNS}
                best = current[VARIED]
                row: Row = {"network, device and profile": f"{MODELS[model]}, {' '.join(place)}, {which}"}
                for column in (
                    "best single",
                    "best single ms",
                    "sequential ms",
                    "ideal ms",
                    "bound ms",
                    "makespan ms",
                    "low ms",
                    "high ms",
                ):
                    row[column] = best[column]
                for key, item in current.items():
                    row[_column(key)] = item["speed-up"]
                    row[f"{_column(key)}, over sequential"] = item["over sequential"]
                for column in (
                    "faster than all",
                    "of ideal",
                    "efficiency",
                    "moving %",
                    "contention %",
                    "MACs ratio",
                    "meetings",
                    "recommended",
                ):
                    row[column] = best[column]
                result.append(row)
    return result


def _column(key: tuple[str, str]) -> str:
    kind, merged = key
    return kind if merged == STAGES else f"{kind}, merged"


def means(rows: Rows, models: Sequence[str]) -> list[Row]:
    """Geometric means over the networks that have a design, beside the goals.

    A network without a stretched design runs on one processor, or as an exact or mixed
    design; it is left out of the means of stretched designs, and counted.
    """
    result = []
    for which in PROFILES:
        for place in DEVICES:
            over_single, over_same = GOALS.get(place, (None, None))
            row: Row = {"device and profile": f"{' '.join(place)}, {which}"}
            for key in DESIGNS:
                current = [rows[Case(model, which, *place, *key).name] for model in models]
                row[_column(key)] = geo_mean([item["speed-up"] for item in current])
                row[f"{_column(key)}, over sequential"] = geo_mean([item["over sequential"] for item in current])
            row["networks"] = len(models)
            stretched = [rows[Case(model, which, *place, "stretched", MERGED).name] for model in models]
            row["with a stretched design"] = sum(item["speed-up"] is not None for item in stretched)
            row |= {"goal": over_single, "goal over sequential": over_same}
            row["reached"] = _reached(row[_column(VARIED)], over_single)
            row["reached over sequential"] = _reached(row[f"{_column(VARIED)}, over sequential"], over_same)
            result.append(row)
    return result


def _reached(value: Value, goal: float | None) -> str | None:
    return None if goal is None or value is None else "yes" if float(value) >= goal else "no"


def varied(rows: Rows, models: Sequence[str]) -> list[Row]:
    """Geometric means of merged mixed designs, planned anew where a number of the device is another."""
    result = []
    for which in PROFILES:
        for place in DEVICES:
            row: Row = {"device and profile": f"{' '.join(place)}, {which}"}
            for change in ("", *CHANGES):
                title = change or "as stated"
                known = change in ("", *changes_for(place[1]))
                current = [rows[Case(model, which, *place, *VARIED, change).name] for model in models] if known else []
                row[title] = geo_mean([item["speed-up"] for item in current])
                row[f"{title}, over sequential"] = geo_mean([item["over sequential"] for item in current])
            result.append(row)
    return result


def bounds(rows: Rows, models: Sequence[str]) -> list[Row]:
    """What limits merged mixed designs: geometric means of their speed-up, of one without any loss, and of what they lose where."""
    result = []
    for which in PROFILES:
        for place in DEVICES:
            current = [row for model in models if (row := rows[Case(model, which, *place, *VARIED).name])["speed-up"] is not None]
            row: Row = {"device and profile": f"{' '.join(place)}, {which}", "speed-up": geo_mean([item["speed-up"] for item in current])}
            for title, column in (("ideal split", "ideal ms"), ("bound of any schedule", "bound ms")):
                row[title] = geo_mean([_over(item, column) for item in current])
            for column in ("efficiency", "of ideal"):
                row[column] = geo_mean([item[column] for item in current])
            for column in ("moving %", "contention %"):
                row[column] = round(sum(float(item[column] or 0) for item in current) / len(current), 1) if current else None
            result.append(row)
    return result


def _over(row: Row, column: str) -> float:
    """How many times as fast as the best single processor a time is."""
    return float(row["best single ms"] or 0) / float(row[column] or 1)


def geo_mean(values: Sequence[Value]) -> float | None:
    """The geometric mean of what is known; None of nothing."""
    some = [float(value) for value in values if value is not None]
    return round(exp(sum(map(log, some)) / len(some)), 3) if some else None
