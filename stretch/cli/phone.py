"""`stretch run --adb`: its flags, and how its result is printed."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from predictors.errors import UsageError
from stretch.cli.output import Output

if TYPE_CHECKING:
    import numpy as np
    from rich.console import Console

    from scheduler.bundle.load import Bundle
    from stretch.phone.answer import PhoneAnswer

Adb = Annotated[bool, typer.Option("--adb", help="Run on a phone through the `adb` program; not tested on a real phone yet.")]
Serial = Annotated[str | None, typer.Option("--serial", help="With --adb: serial number of the device, as `adb devices` prints it.")]
BenchmarkModel = Annotated[
    Path | None, typer.Option("--benchmark-model", help="With --adb: LiteRT's benchmark_model for Android, which times every signature.")
]
PhoneRunner = Annotated[
    Path | None,
    typer.Option("--runner", help="With --adb: Android build of the program that `stretch runner` writes, which runs all branches."),
]
Libraries = Annotated[
    Path | None, typer.Option("--libraries", help="With --adb: folder of LiteRT's libraries for Android, accelerators included.")
]
Measurements = Annotated[
    Path | None, typer.Option("--measurements", help="With --adb: folder of measurements to append to. Default: phone.measurements.")
]
Profile = Annotated[
    str | None,
    typer.Option("--profile", help="With --adb: profile (id or file) that the times are recorded for. Default: the bundle's device."),
]
CoreSet = Annotated[str | None, typer.Option("--core-set", help="With --adb: core set of the phone's CPU, as its profile names it.")]
Cores = Annotated[str | None, typer.Option("--cores", help="With --adb: numbers of these cores, such as 4-6. Default: any.")]

#: Default number of runs of each signature.
RUNS = 50

#: Default folder of measurements.
FOLDER = Path("phone.measurements")


def check_phone(adb: bool, only_here: dict[str, Any], only_there: dict[str, Any]) -> None:
    """Refuse incompatible options."""
    for flag, value in (only_here if adb else only_there).items():
        if value:
            raise UsageError(f"{flag} {'does not go with' if adb else 'goes with'} --adb", "leave one of the two out" if adb else None)


def run_on_phone(out: Output, loaded: "Bundle", x: "np.ndarray[Any, Any]", effort: dict[str, Any], flags: dict[str, Any]) -> None:
    """Measure a bundle on a phone and print the results."""
    from msgspec.structs import replace

    from stretch.phone.answer import UNTESTED
    from stretch.phone.measure import PhoneRequest, measure

    request = PhoneRequest(
        serial=flags["--serial"],
        benchmark=flags["--benchmark-model"],
        runner=flags["--runner"],
        libraries=flags["--libraries"],
        measurements=flags["--measurements"] or FOLDER,
        profile=flags["--profile"],
        core_set=flags["--core-set"],
        cores=flags["--cores"],
        runs=effort["repeat"] or RUNS,
        warmup=effort["warmup"],
        limit=effort["limit"],
        trace=effort["trace"],
    )
    out.warn(UNTESTED)
    with out.progress("on the phone") as step:
        answer = measure(loaded, request, x, step)
    if answer.runner is not None and answer.runner.on_cpu:
        out.warn(f"operators of {', '.join(answer.runner.on_cpu)} stayed on the CPU, so the times are not those of the accelerators")
    answer = replace(answer, warnings=out.warnings)
    out.emit(answer, lambda console: _print(console, answer))


def _print(console: "Console", answer: "PhoneAnswer") -> None:
    from rich.table import Table

    console.print(f"{answer.model}, planned for {answer.device}, on {answer.phone} ({answer.serial}, {answer.system})")
    if answer.signatures:
        table = Table(box=None, pad_edge=False)
        for title in ("signature", "processor", "precision", "ms", "kernels", ""):
            table.add_column(title, justify="right" if title in ("ms", "kernels") else "left")
        for row in answer.signatures:
            ms = "" if row.ms is None else f"{row.ms:.3f}"
            table.add_row(row.signature, row.processor, row.precision, ms, str(row.kernels), row.reason or "")
        console.print(table)
    if answer.runner is not None:
        runner = answer.runner
        console.print(f"all branches: {runner.median_ms:.3f} ms, the median of {runner.runs}; the output differs by {runner.max_error:.1e}")
    if answer.measurements is not None:
        console.print(f"added to {answer.measurements}; once there are enough networks, fit them:", soft_wrap=True)
        folder = answer.measurements if "/" in answer.measurements else f"./{answer.measurements}"
        command = ["stretch", "fit", folder, "--device", answer.profile, "--measured-on", answer.phone, "--out", f"{answer.phone}.fit.json"]
        console.print(f"  {shlex.join(command)}", soft_wrap=True)
