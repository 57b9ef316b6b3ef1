"""Predicted gain of branches on two processors that people have: `python -m experiments.second_processors.run`."""

import sys
from pathlib import Path

from experiments.advise.run import columns
from experiments.networks import MODELS, graph_of
from experiments.records import Row, write_record
from predictors.devices import load_device
from stretch.stages.advise import DeviceAdvice, advise

HERE = Path(__file__).parent
#: Boards and laptops with two processors of similar speed, measured with their own runtimes.
DEVICES = ("rk3588", "n5105", "x-elite", "core-ultra-155h")
#: Precision of all processors; a processor without it gets the next wider one.
PRECISIONS = ("fp32", "fp16")


def row_of(name: str, precision: str, answer: DeviceAdvice) -> Row:
    """Return the row of a network on a device."""
    single = answer.best_single
    return {
        "device and network": f"{answer.device}, {name}, {precision}",
        "best single": f"{single.processor} in {single.precision}",
        "best single ms": round(single.ms, 2),
        **columns("exact", answer.exact),
        **columns("stretched", answer.stretched),
        "stretched, MACs": None if answer.stretched is None else round(answer.stretched.macs_ratio, 2),
        "advice": answer.recommended,
    }


def main() -> None:
    """Predict every case, and write the record."""
    profiles = [load_device(name) for name in DEVICES]
    rows: list[Row] = []
    for model, name in MODELS.items():
        graph = graph_of(model)
        for precision in PRECISIONS:
            rows += [row_of(name, precision, answer) for answer in advise(model, graph, profiles, precision).answers]
        sys.stderr.write(f"{name}\n")
    rows.sort(key=lambda row: [str(row["device and network"]).startswith(device) for device in DEVICES], reverse=True)
    write_record(
        HERE / "results" / "predicted.json",
        {"answers": rows},
        source="predicted",
        command="python -m experiments.second_processors.run",
        notes=[
            "Every figure is predicted from a profile: nothing ran on these devices here. The profiles were fitted to times of whole networks that others measured on ncnn, OpenVINO and Qualcomm's runtime.",
            "Speed-ups are over the best single processor; `low` and `high` are the ends of the 90 % interval. Exact branches compute what the original does; stretched ones are other networks, which want training, with the multiply-accumulates over the original's beside them.",
            "`no clear winner` means that the interval of a ratio has 1 in it, or that a gain of 3 % is not likely enough.",
        ],
    )


if __name__ == "__main__":
    main()
