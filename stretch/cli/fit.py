"""`stretch fit`: fit kernel models of a device to measurements, calibrate it by whole networks, or derive it from similar devices."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer

from predictors.errors import StretchError, UsageError
from stretch.cli.output import Output, verb

if TYPE_CHECKING:
    from rich.console import Console

    from predictors.devices import DeviceProfile
    from predictors.fits import Prior
    from predictors.graph import OpGraph

#: Argument for deriving priors from the fits of other profiles.
RELATIVES = "relatives"


class FitRow(msgspec.Struct, frozen=True, kw_only=True):
    """Cross-validation of the fit of one processor, core set and precision."""

    networks: int  # Number of networks, each of which was held out once.
    groups: int  # Number of groups held out together: families of networks, or chips for `RELATIVES`.
    within_10: float | None  # Share of networks within ±10 % of the measured time; None if unknown.
    within_20: float  # Share within ±20 %.
    mape: float  # Mean error relative to the measured time.
    coverage: float  # Share of networks inside the predicted interval.
    low: float  # Lower end of the 90 % interval ÷ prediction.
    high: float  # Upper end ÷ prediction.
    measure_next: str | None = None  # Network whose time would narrow the interval most; a calibration by networks has it.


class FitAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Fits that were written; the fields are the keys of `stretch fit --json`."""

    profile: str  # Id of the profile.
    file: str  # The written file.
    measured_on: str | None  # Measured device; None for `RELATIVES` and for a table of networks.
    held_out: dict[str, FitRow]  # Each fit by processor, core set and precision.
    warnings: list[str]  # What a person should know.


@verb
def fit(
    out: Output,
    measurements: Annotated[
        str,
        typer.Argument(
            help="NETWORKS.csv with times of a few whole networks, names of measurements that ship with nn-stretch (several with commas), a folder, or `relatives` for processors without measurements."
        ),
    ],
    device: Annotated[str, typer.Option("--device", "-d", help="Profile id (see `stretch devices`) or TOML file that the fits are for.")],
    measured_on: Annotated[
        str | None, typer.Option("--measured-on", help="Device in the tables, if it is another one with the same chip as the profile's.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--out", help="File to write. Default: beside the profile. With NETWORKS.csv: the new profile, such as `mine`."),
    ] = None,
    statistic: Annotated[
        Literal["least", "median", "mean"], typer.Option(help="What of several runs the times of NETWORKS.csv are.")
    ] = "median",
    size: Annotated[
        str, typer.Option("--input", help="Input shape of the networks of NETWORKS.csv that state none, such as 3x224x224.")
    ] = "",
    rewrite: Annotated[
        list[str] | None,
        typer.Option(help="What networks of NETWORKS.csv had in place of some operators on every processor, such as grouped_conv=parts."),
    ] = None,
    trust_code: Annotated[bool, typer.Option("--trust-code", help="Execute the Python files that NETWORKS.csv names.")] = False,
) -> None:
    """Fit kernel models of a device to measurements and cross-validate them, or calibrate a profile by times of a few whole networks."""
    from predictors.devices import PROFILE_FOLDER, list_devices, load_device
    from predictors.fits import fit_path, prior_path

    if measurements.endswith(".csv"):
        if file is None or measured_on:
            raise UsageError(
                "a calibration by networks writes a profile of its own", "name it with `--out mine`; --measured-on is for tables"
            )
        target = file.with_name(f"{file.name.removesuffix('.toml')}.toml")
        rows = _from_networks(out, measurements, device, target, statistic, size, rewrite or [], trust_code)
        answer = FitAnswer(profile=target.stem, file=str(target), measured_on=None, held_out=rows, warnings=out.warnings)
        out.emit(answer, lambda console: _show(console, answer))
        return
    profile = load_device(device)
    related = measurements == RELATIVES
    if related and measured_on:
        raise UsageError("--measured-on names a device in tables of measurements, `relatives` are fits", "leave it out")
    beside = prior_path if related else fit_path
    target = file or beside(PROFILE_FOLDER / f"{device}.toml" if device in list_devices() else Path(device))
    if not target.parent.is_dir():
        raise StretchError(f"there is no folder {target.parent} to write {target.name} into", "make it, or choose another with --out")
    rows = _from_relatives(out, profile, target) if related else _from_tables(out, measurements, profile, measured_on, target)
    on = None if related else measured_on or profile.id
    answer = FitAnswer(profile=profile.id, file=str(target), measured_on=on, held_out=rows, warnings=out.warnings)
    out.emit(answer, lambda console: _show(console, answer))


def _from_tables(out: Output, measurements: str, profile: "DeviceProfile", measured_on: str | None, target: Path) -> dict[str, FitRow]:
    """Fit and write kernel models; returns their cross-validation."""
    from predictors.fits import write_fits
    from predictors.fitting.fit import fit_device
    from predictors.measurements.networks import load_measurements

    names = [measurements] if Path(measurements).is_dir() else measurements.split(",")
    with out.progress("reading"):
        tables = [load_measurements(name) for name in names]
    with out.progress("fitting") as step:
        fits = [fit.fit for table in tables for fit in fit_device(table, profile, measured_on, step, out.warn)]
    command = ["stretch", "fit", measurements, "--device", profile.id, *(["--measured-on", measured_on] if measured_on else [])]
    write_fits(target, profile.id, shlex.join(command), fits)
    return {
        f"{fit.processor}[{fit.core_set}] {fit.precision}": FitRow(
            networks=fit.held_out.networks,
            groups=fit.held_out.families,
            within_10=fit.held_out.within_10,
            within_20=fit.held_out.within_20,
            mape=fit.held_out.mape,
            coverage=fit.held_out.coverage,
            low=fit.interval.low,
            high=fit.interval.high,
        )
        for fit in fits
    }


def _from_networks(
    out: Output, table: str, device: str, target: Path, statistic: str, size: str, rewrites: list[str], trust_code: bool
) -> dict[str, FitRow]:
    """Calibrate a profile by times of whole networks, and write it; returns how well each network is predicted by the others."""
    from stretch.cli.inputs import read_inputs
    from stretch.stages.calibrate import calibrate_profile
    from stretch.stages.network import read_graph

    def read(model: str, text: str) -> "OpGraph":
        side = f"3x{text}x{text}" if text.isdigit() else text
        return read_graph(model, read_inputs([side] if side else None), trust_code=trust_code).graph

    with out.progress("reading networks") as step:
        news = calibrate_profile(Path(table), device, target, read, statistic=statistic, size=size, rewrites=tuple(rewrites), step=step)
    return {name: _row_of_prior(new.prior, new.next_network) for name, new in news.items()}


def _from_relatives(out: Output, profile: "DeviceProfile", target: Path) -> dict[str, FitRow]:
    """Derive and write priors from the shipped profiles; returns their cross-validation."""
    from predictors.devices import list_devices, load_device
    from predictors.fits import write_priors
    from predictors.fitting.relatives import fit_priors
    from predictors.measurements.networks import list_measurements, load_measurements

    with out.progress("reading"):
        tables = [load_measurements(name) for name in list_measurements()]
        profiles = [fitted for fitted in map(load_device, list_devices()) if fitted.fits]
    with out.progress("comparing") as step:
        priors = fit_priors(profile, profiles, tables, step)
    write_priors(target, profile.id, f"stretch fit {RELATIVES} --device {profile.id}", priors)
    return {f"{prior.processor}[{prior.core_set}] {prior.precision}": _row_of_prior(prior) for prior in priors}


def _row_of_prior(prior: "Prior", measure_next: str | None = None) -> FitRow:
    """How well a prior predicts what was left out of it."""
    return FitRow(
        networks=prior.left_out.networks,
        groups=prior.left_out.chips,
        within_10=None,
        within_20=prior.left_out.within_20,
        mape=prior.left_out.mape,
        coverage=prior.left_out.coverage,
        low=prior.interval.low,
        high=prior.interval.high,
        measure_next=measure_next,
    )


def _show(console: "Console", answer: FitAnswer) -> None:
    from rich.table import Table

    calibrated = any(row.measure_next for row in answer.held_out.values())
    what = "networks" if calibrated else "chips" if answer.measured_on is None else "families"
    table = Table(box=None, pad_edge=False)
    for title in (f"on {what} left out", what, "networks", "within ±10 %", "±20 %", "mean error", "in the 90 % interval", "interval"):
        table.add_column(title, justify="left" if title.startswith("on") else "right")
    for name, row in answer.held_out.items():
        within = "" if row.within_10 is None else f"{row.within_10:.0%}"
        numbers = (str(row.groups), str(row.networks), within, f"{row.within_20:.0%}", f"{row.mape:.1%}", f"{row.coverage:.0%}")
        table.add_row(name, *numbers, f"{row.low:.2f} to {row.high:.2f}")
    console.print(table)
    for name, row in answer.held_out.items():
        if row.measure_next:
            console.print(f"{name}: the interval would narrow most with the time of {row.measure_next}", soft_wrap=True)
    console.print(f"written: {answer.file}", soft_wrap=True)
