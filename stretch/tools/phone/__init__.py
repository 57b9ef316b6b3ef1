"""Measurements on a phone that is connected to the computer, through adb."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

#: Warning on every result and every page about phones.
UNTESTED = "the way over adb was not tried on a phone yet: compare its first times with those of another tool"


@dataclass(frozen=True)
class PhoneRequest:
    """Request for measurements on a phone."""

    serial: Annotated[str | None, typer.Option(help="With --adb: serial number of the device, as `adb devices` prints it.")] = None
    benchmark: Annotated[
        Path | None,
        typer.Option("--benchmark-model", help="With --adb: LiteRT's benchmark_model for Android, which times every signature."),
    ] = None
    runner: Annotated[
        Path | None,
        typer.Option(help="With --adb: Android build of the program that `stretch export --as cpp` writes, which runs all branches."),
    ] = None
    libraries: Annotated[Path | None, typer.Option(help="With --adb: folder of LiteRT's libraries for Android, accelerators included.")] = (
        None
    )
    measurements: Annotated[Path, typer.Option(help="With --adb: folder of measurements to append to.")] = Path("phone.measurements")
    profile: Annotated[
        str | None,
        typer.Option(help="With --adb: profile (id or file) that the times are recorded for. Default: the bundle's device."),
    ] = None
    core_set: Annotated[str | None, typer.Option(help="With --adb: core set of the phone's CPU, as its profile names it.")] = None
    cores: Annotated[str | None, typer.Option(help="With --adb: numbers of these cores, such as 4-6. Default: any.")] = None
    runs: int = 50  # Number of measured runs.
    warmup: int = 5  # Number of warm-up runs.
    limit: float = 600.0  # Timeout of a call of `adb` in seconds.
    trace: Path | None = None  # File for the timeline of the branches; None for none.
