"""The fastest network that agrees with the original as often as asked for, next to exact branches and to the original without blocks.

`python -m experiments.real_networks.agreeing measure --network NETWORK --device DEVICE --weights FOLDER --images FOLDER --out FILE` writes
one row, on the CPU; `python -m experiments.real_networks.agreeing record FILE…` makes rows a record.
"""

import resource
import sys
import time
from pathlib import Path

from experiments.real_networks.more_images import ALL
from experiments.real_networks.run import command_parser, keep_rows, kept_rows
from experiments.records import About, Facts, Row, write_record

HERE = Path(__file__).parent
#: Requested agreement.
LEAST = 0.9


def measured(name: str, device: str, weights: Path, images: Path, count: int) -> Row:
    """Run `stretch branch --images --min-agreement --repair`, and return the row of its result."""
    import stretch
    from predictors.devices import load_device
    from stretch.planning.config import PlanConfig
    from stretch.planning.design.branch_design import exact_kinds
    from stretch.planning.plan import plan

    real, start = ALL[name], time.monotonic()
    result = stretch.branch(
        real.name,
        device,
        weights=str(weights / real.weights),
        preprocessing=real.preprocessing or None,
        images=str(images),
        image_count=count,
        min_agreement=LEAST,
        repair=True,
        progress=lambda text: sys.stderr.write(f"{text}\n"),
    )
    planned, agreement, shortened = result.plan, result.agreement, result.plan.shortened
    exact = plan(planned.graph, load_device(device), PlanConfig(kinds=exact_kinds(), precision=planned.config.precision))
    usage = resource.getrusage(resource.RUSAGE_SELF)
    single = planned.best_single.ms
    row: Row = {"case": f"{name}, {device}", "images": count, "seconds": round(time.monotonic() - start)}
    row["processor_seconds"] = round(usage.ru_utime + usage.ru_stime)
    row["left_out"] = sum(len(part.missing) for part in planned.design.segments)
    row["branched"] = "; ".join(f"{part.name}: {part.join}" for part in planned.design.segments if not part.whole)
    row |= {"speedup": round(single / planned.run.makespan_ms, 3), "exact_speedup": round(single / exact.run.makespan_ms, 3)}
    assert agreement is not None
    row |= {"compared_on": agreement.images} | {f"agreement_{key}": getattr(agreement, key) for key in ("value", "low", "high")}
    kept = None if shortened is None else shortened.kept
    row["shortened"] = kept.shortened if kept is not None and kept.basis == "measured" else None
    row["shortened_speedup"] = None if shortened is None else round(single / shortened.ms, 3)
    return row


def main() -> None:
    """Measure, or write a record."""
    parser = command_parser(__doc__)
    parser.add_argument("--network", choices=ALL)
    parser.add_argument("--device")
    parser.add_argument("--image-count", type=int, default=400, help="photographs for calibration")
    options = parser.parse_args()
    if options.what == "measure":
        keep_rows([measured(options.network, options.device, options.weights, options.images, options.image_count)], options.out)
        return
    rows, where = kept_rows(options.files)
    write_record(
        HERE / "results" / "agreeing.json",
        {"cases": rows},
        source="measured",
        command="python -m experiments.real_networks.agreeing measure",
        runs=1,
        about={"cases": About(columns={name: Facts(source="predicted") for name in ("speedup", "exact_speedup", "shortened_speedup")})},
        notes=[
            f"`branch --min-agreement {LEAST:g} --repair` on all processors of the device. Agreement on photographs that neither planning nor calibration saw, with its 95 % interval; float32; one seed.",
            "`left_out`: blocks that the branched network does without. `shortened`: the original without its least important blocks on the best single processor, as fast, calibrated and compared on the same photographs. `processor_seconds`: time of all threads, user and system.",
        ],
        **where,
    )


if __name__ == "__main__":
    main()
