"""How well pooled fits predict families of networks that they have not seen: `python -m experiments.predictor_pooled.run`.

NPUs, boards with ncnn and transformers on phone CPUs, each from the measurements that ship: families left out one by one,
of more than eight in five folds, whose networks no device's times have shown.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from experiments.records import Row, write_record
from predictors.devices import load_device
from predictors.fitting.fit import BORROWED_FITS, Pool, family_folds, predict
from predictors.fitting.networks import Networks, Place, load_formula
from predictors.measurements.networks import load_measurements
from predictors.models.fitted import FittedModel

HERE = Path(__file__).parent

#: Fusion rules of each set of measurements, and numbers of channels that are computed at a time.
SETS = {
    "npu": ("qnn_htp", (32, 32)),
    "boards": ("ncnn", (4, 4)),
    "transformers": ("tflite_cpu_transformers", (8, 4)),
}

#: Core sets of one core.
ONE_CORE = ("1large", "1med", "1small")
#: Subjects of goals: name, set, and a condition on precision, device and core set.
Chosen = Callable[[Place], bool]
GOALS: dict[str, tuple[str, Chosen]] = {
    "NPUs, w8a8": ("npu", lambda place: place[0] == "int8"),
    "NPUs, float": ("npu", lambda place: place[0] == "fp16"),
    "Raspberry Pi 4, one A72, fp32": ("boards", lambda place: place == ("fp32", "raspberrypi4", "1large")),
    "Raspberry Pi 4, four A72, fp32": ("boards", lambda place: place == ("fp32", "raspberrypi4", "4large")),
    "RK3399, one A72, fp32": ("boards", lambda place: place == ("fp32", "rk3399", "1large")),
    "RK3399, two A72, fp32": ("boards", lambda place: place == ("fp32", "rk3399", "2large")),
    "Raspberry Pi 5, fp16": ("boards", lambda place: place[:2] == ("fp16", "raspberrypi5")),
    "RK3588, fp32": ("boards", lambda place: place[:2] == ("fp32", "rk3588")),
    "boards, int8": ("boards", lambda place: place[0] == "int8"),
    "transformers, one core, fp32": ("transformers", lambda place: place[0] == "fp32" and place[2] in ONE_CORE),
    "transformers, several cores, fp32": ("transformers", lambda place: place[0] == "fp32" and place[2] not in ONE_CORE),
    "transformers, one core, int8": ("transformers", lambda place: place[0] == "int8" and place[2] in ONE_CORE),
    "transformers, several cores, int8": ("transformers", lambda place: place[0] == "int8" and place[2] not in ONE_CORE),
}


def pool_of(name: str) -> Pool:
    """Return the pool of a set of measurements."""
    backend, slices = SETS[name]
    measured = load_measurements(name)
    networks = Networks(measured.graphs, measured.families, backend)
    return Pool(networks, load_formula(backend), measured.latencies, family_folds(measured.families, networks.kinds), slices)


#: Families of the NPUs' networks in their first estimate: relatives were apart, so that fits had seen similar networks.
FIRST_FAMILIES = {
    **dict.fromkeys(("resnext50_32x4d", "resnext101_32x8d"), "resnext"),
    **dict.fromkeys(("efficientnet_b0", "efficientnet_b4"), "efficientnet"),
    **dict.fromkeys(("mobilenet_v3_small", "mobilenet_v3_large"), "mobilenet_v3"),
    **dict.fromkeys(("vit_b_16", "beit_base_patch16_224"), "vit"),
    "efficientformer_l1": "efficientformer",
    "mobilevit_s": "mobilevit",
}

#: Runtime that timed every NPU.
ONE_RUNTIME = "QAIRT 2.42"


def estimates(pool: Pool) -> list[Row]:
    """Return the apparent errors of NPU predictions by several evaluations: families together or apart, with one or several runtimes."""
    networks, families = pool.networks, pool.networks.families | FIRST_FAMILIES
    first = replace(pool, networks=replace(networks, families=families), folds=family_folds(families, networks.kinds))
    single_runtime = [row for row in pool.rows if row.runtime == ONE_RUNTIME]
    evaluations = {"five folds, relatives apart": first, "each family with its relatives alone": pool}
    evaluations |= {f"{title}, {ONE_RUNTIME} alone": replace(evaluation, rows=single_runtime) for title, evaluation in evaluations.items()}
    result: list[Row] = []
    for title, evaluation in evaluations.items():
        for precision in ("int8", "fp16"):
            values = score(evaluation, [place for place in evaluation.ratios if place[0] == precision])
            selected = {key: value for key, value in values.items() if key in ("times", "families") or "15 %" in key or "25 %" in key}
            result.append({"left out": title, "precision": precision, **selected})
    return result


def score(pool: Pool, places: list[Place]) -> Row:
    """Return the errors of predictions, over all networks and places, and with equal weight per family."""
    errors = np.array([abs(1 / ratio - 1) for place in places for ratio in pool.ratios[place].values()])
    of = np.array([pool.networks.families[name] for place in places for name in pool.ratios[place]])
    names = {name for place in places for name in pool.ratios[place]}
    within = {f"within ±{100 * bound:.0f} %": round(100 * float(np.mean(errors <= bound))) for bound in (0.1, 0.15, 0.2, 0.25)}
    for bound in (0.15, 0.25):
        alike = float(np.mean([np.mean(errors[of == family] <= bound) for family in sorted(set(of))]))
        within[f"families alike, within ±{100 * bound:.0f} %"] = round(100 * alike)
    return {
        "networks": len(names),
        "families": len({pool.networks.families[name] for name in names}),
        "times": len(errors),
        **within,
        "median error %": round(100 * float(np.median(errors)), 1),
        "mean error %": round(100 * float(np.mean(errors)), 1),
        "inside 90 % intervals": round(100 * pool.coverage(places)),
    }


#: Phones whose profiles take kernels of transformers from their table.
PHONES = ("pixel4", "s10", "mi8se", "a03s", "iphonexs")


def through_profiles(pool: Pool) -> list[Row]:
    """Return the errors of phones' profiles for transformers; borrowed kernels come from fits without the network's family."""
    borrowed = BORROWED_FITS["tflite_cpu"]
    networks = Networks(pool.networks.graphs, pool.networks.families, "tflite_cpu")
    result: list[Row] = []
    for device in PHONES:
        profile, on = load_device(device), borrowed.devices.get(device, device)
        ratios: dict[str, list[float]] = {}
        for place in pool.ratios:
            precision, measured_on, core_set = place
            if measured_on != on or core_set not in profile.processors["cpu"].core_sets:
                continue
            processor = profile.processor(f"cpu[{core_set}]")
            if precision not in processor.fits:
                continue
            (times,) = (item.times for item in pool.sets[precision] if item.key == place[1:])
            for fold, sizes in pool.left_out.items():
                stored, _ = pool.designs[precision].stored(sizes[place])
                fit = processor.fits[precision]
                groups = fit.groups | {name: stored[source] for name, source in borrowed.groups.items()}
                model = FittedModel(msgspec.structs.replace(fit, groups=groups), processor)
                for i, name in enumerate(networks.costs):
                    if pool.folds[name] == fold and np.isfinite(times[i]):
                        ratios.setdefault(precision, []).append(predict(model, networks, name) / float(times[i]))
        for precision, phone_ratios in sorted(ratios.items()):
            errors = np.abs(np.array(phone_ratios) - 1)
            within = {f"within ±{100 * bound:.0f} %": round(100 * float(np.mean(errors <= bound))) for bound in (0.1, 0.2, 0.3)}
            row: Row = {"phone": f"{device} {precision}", "times": len(phone_ratios), **within}
            result.append(row | {"predicted ÷ measured, median": round(float(np.median(phone_ratios)), 2)})
    return result


def tables(pools: Mapping[str, Pool]) -> dict[str, list[Row]]:
    """Return all tables of the record."""
    result: dict[str, list[Row]] = {"goals": []}
    for title, (name, chosen) in GOALS.items():
        places = [place for place in pools[name].ratios if chosen(place)]
        result["goals"].append({"what": title, **score(pools[name], places)})
    for name, pool in pools.items():
        result[name] = [{"device": f"{place[1]} {place[2]} {place[0]}", **score(pool, [place])} for place in sorted(pool.ratios)]
        result[f"{name}_networks"] = []
        for precision in sorted(pool.designs):
            ratios: dict[str, list[float]] = {}
            for place, place_ratios in pool.ratios.items():
                for network, ratio in place_ratios.items():
                    if place[0] == precision:
                        ratios.setdefault(network, []).append(1 / ratio)
            for network, item in sorted(ratios.items()):
                row: Row = {"network": f"{network} {precision}", "family": pool.networks.families[network], "times": len(item)}
                parts = {"least": min(item), "median": float(np.median(item)), "most": max(item)}
                result[f"{name}_networks"].append(row | {f"predicted ÷ measured, {key}": round(value, 2) for key, value in parts.items()})
    result["npu_estimates"] = estimates(pools["npu"])
    result["through_profiles"] = through_profiles(pools["transformers"])
    return result


def main() -> None:
    """Write the record."""
    write_record(
        HERE / "results" / "families_left_out.json",
        tables({name: pool_of(name) for name in SETS}),
        source="predicted",
        command="python -m experiments.predictor_pooled.run",
        notes=[
            "Predictions against public measurements (predictors/measurements); every network was left out with its family on all devices."
        ],
    )


if __name__ == "__main__":
    main()
