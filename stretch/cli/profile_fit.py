"""`stretch profile fit`: fit a device profile to measurements."""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer

from predictors.devices import load_device
from predictors.errors import StretchError, UsageError
from predictors.files import check_folder
from predictors.fits import fit_path
from predictors.measurements.networks import load_measurements
from stretch.api.parameters import device_option
from stretch.cli.interrupt import WRITER_GRACE_S
from stretch.cli.output import Output

if TYPE_CHECKING:
    from rich.console import Console

    from predictors.devices import DeviceProfile
    from predictors.graph import OpGraph

GRACE_S = WRITER_GRACE_S

#: Operators that some DSPs or GPUs of phones lack; networks with them are not proposed for measurements.
_RARE_KINDS = ("opaque", "layer_norm", "gelu")

#: Start of the first line of a calibrated profile, before the command that made it.
_CALIBRATED_COMMENT = "# Calibrated by whole networks:"

#: Argument that derives priors from the fits of other profiles.
RELATIVES = "relatives"


class FitRow(msgspec.Struct, frozen=True, kw_only=True):
    """Cross-validation of the fit of one processor, core set and precision."""

    networks: int  # Number of networks; each was held out once.
    groups: int  # Number of groups held out together: families of networks, or chips for `RELATIVES`.
    within_10: float | None  # Share of networks within ±10 % of the measured time; None if unknown.
    within_20: float  # Share within ±20 %.
    mape: float  # Mean error relative to the measured time.
    coverage: float  # Share of networks inside the predicted interval.
    low: float  # Lower end of the 90 % interval over the prediction.
    high: float  # Upper end over the prediction.
    measure_next: str | None = None  # Network whose time would narrow the interval most; None except for calibrations by networks.


class FitAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Written fits; the fields are the keys of `stretch profile fit --json`."""

    profile: str  # Id of the profile.
    file: str  # The written file.
    measured_on: str | None  # Measured device; None for `RELATIVES` and for a table of networks.
    held_out: dict[str, FitRow]  # Cross-validation of each fit, by processor, core set and precision.
    warnings: list[str]  # Warnings for the user.


class NetworkTable(msgspec.Struct, frozen=True, kw_only=True):
    """Options for NETWORKS.csv."""

    statistic: Annotated[
        Literal["least", "median", "mean"], typer.Option(help="Which statistic of several runs NETWORKS.csv contains.")
    ] = "median"
    size: Annotated[
        str, typer.Option("--input", help="Input shape of the networks of NETWORKS.csv that state none, such as 3x224x224.")
    ] = ""
    rewrite: Annotated[
        Sequence[str],
        typer.Option(help="Operators that networks of NETWORKS.csv had replaced on every processor, such as grouped_conv=parts."),
    ] = ()
    trust_code: Annotated[bool, typer.Option("--trust-code", help="Execute the Python files that NETWORKS.csv names.")] = False


def profile_fit(
    out: Output,
    measurements: Annotated[
        str,
        typer.Argument(
            help="A NETWORKS.csv with times of a few whole networks, a folder of measurements, or names of those that ship. "
            "`relatives` is for processors without measurements."
        ),
    ],
    device: Annotated[
        str,
        device_option("Profile id (see `stretch list devices`) or TOML file that the fits are for."),
    ],
    networks: NetworkTable,
    file: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="File of the fits. Default: next to the profile. With NETWORKS.csv the new profile, such as `mine`."
        ),
    ] = None,
    measured_on: Annotated[
        str | None, typer.Option("--measured-on", help="Device in the tables, if it is another one with the same chip as the profile's.")
    ] = None,
) -> None:
    """Fit a device profile to measurements.

    Kernel models are fitted and cross-validated, or the profile is calibrated by times of a few whole networks.
    """
    from predictors.devices import PROFILE_FOLDER, list_devices
    from predictors.fits import prior_path

    related, on = measurements == RELATIVES, None
    if measurements.endswith(".csv"):
        if file is None or measured_on:
            raise UsageError(
                "a calibration by networks writes a profile of its own", "name it with `--out mine`; --measured-on is for tables"
            )
        target = file.with_name(f"{file.name.removesuffix('.toml')}.toml")
        name, rows = target.stem, _from_networks(out, measurements, device, target, networks)
    else:
        profile = load_device(device)
        name = profile.id
        if related and measured_on:
            raise UsageError("--measured-on names a device in tables of measurements, `relatives` are fits", "leave it out")
        path_of = prior_path if related else fit_path
        target = file or path_of(PROFILE_FOLDER / f"{device}.toml" if device in list_devices() else Path(device))
        check_folder(target, "--out")
        rows = _from_relatives(out, profile, target) if related else _from_tables(out, measurements, profile, measured_on, target)
        on = None if related else measured_on or name
    answer = FitAnswer(profile=name, file=str(target), measured_on=on, held_out=rows, warnings=out.warnings)
    out.emit(answer, lambda console: _show_fits(console, answer))


def _from_tables(out: Output, measurements: str, profile: "DeviceProfile", measured_on: str | None, target: Path) -> dict[str, FitRow]:
    """Fit and write kernel models, and return their cross-validation."""
    from predictors.fits import FitFile, write_fits
    from predictors.fitting.fit import fit_device

    names = [measurements] if Path(measurements).is_dir() else measurements.split(",")
    with out.progress("reading"):
        tables = [load_measurements(name) for name in names]
    with out.progress("fitting") as step:
        fits = [fit.fit for table in tables for fit in fit_device(table, profile, measured_on, step, out.warn)]
    command = f"stretch profile fit {shlex.quote(measurements)} --device {shlex.quote(profile.id)}"
    command += f" --measured-on {shlex.quote(measured_on)}" if measured_on else ""
    write_fits(target, FitFile(profile.id, command, tuple(fits)))
    return {_fit_name(fit): _fit_row(fit, fit.held_out, fit.held_out.families, within_10=fit.held_out.within_10) for fit in fits}


def _from_networks(out: Output, table: str, device: str, target: Path, networks: NetworkTable) -> dict[str, FitRow]:
    """Fit a profile to times of whole networks, write it, and return its cross-validation."""
    from predictors.devices import PROFILE_FOLDER, list_devices, profile_path
    from predictors.files import write_whole
    from predictors.fits import PriorFile, prior_path, write_fits
    from predictors.fitting.priors import calibrate, read_networks
    from predictors.models.roofline import MEASURED
    from predictors.predictor import origin_of
    from stretch.api.parameters import read_inputs
    from stretch.stages.network import read_graph

    statistic, size, rewrites = networks.statistic, networks.size, tuple(networks.rewrite)
    path = profile_path(device)
    base = load_device(path)
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", target.stem) or (target.stem in list_devices() and target.parent.resolve() != PROFILE_FOLDER):
        raise UsageError(f"--out {target}: `{target.stem}` cannot be the id of a new profile", "choose another name, such as `mine`")
    check_folder(target, "--out")
    rows = read_networks(Path(table))
    graphs: dict[tuple[str, str], OpGraph] = {}
    with out.progress("reading networks") as step:
        for row in rows:
            base.processor(row.processor).check_precision(row.precision or None)
            key = (row.model, row.input or size)
            if key not in graphs:
                side = f"3x{key[1]}x{key[1]}" if key[1].isdigit() else key[1]
                graphs[key] = read_graph(row.model, read_inputs([side] if side else None), trust_code=networks.trust_code).graph
            step()
    candidates = {
        name: graph for name, graph in load_measurements("npu").graphs.items() if not any(op.kind in _RARE_KINDS for op in graph.ops)
    }
    known = target.exists()
    own = known and target.resolve() == path.resolve()
    reference = "" if own else base.id if path.parent.resolve() == PROFILE_FOLDER else str(path.resolve())
    source = f"{Path(table).name}, {statistic} of the runs of each network"
    priors, news = calibrate(base, reference, rows, lambda row: graphs[row.model, row.input or size], candidates, source, rewrites)
    arguments = ["stretch", "profile", "fit", Path(table).as_posix(), "--device", device, "--out", target.stem, "--statistic", statistic]
    command = shlex.join(
        arguments
        + (["--input", size] if size else [])
        + [word for name in rewrites for word in ("--rewrite", name)]
        + ["--trust-code"] * networks.trust_code
    )
    text = _profile_text(path.read_text(), target.stem, rewrites)
    write_whole(target, f"{_CALIBRATED_COMMENT} {command}\n{text}".encode(), "device profile")
    try:
        write_fits(prior_path(target), PriorFile(target.stem, command, tuple(priors)))
    except OSError as error:
        if not known:
            target.unlink()
        raise StretchError(f"cannot write {prior_path(target)}: {error.strerror}", "choose another place with --out") from error
    timed = {base.processor(row.processor).family for row in rows}
    untimed = [base.processor(name) for name in base.default_processors if name not in timed]
    if guessed := [one.name for one in untimed if origin_of(one, one.default_precision) not in MEASURED]:
        out.warn(
            f"no network was timed on the {' and the '.join(guessed)} of {target.stem}: speed-ups compare measured times with estimates"
        )
    return {
        name: _fit_row(new.prior, new.prior.left_out, new.prior.left_out.chips, measure_next=new.next_network) for name, new in news.items()
    }


def _profile_text(text: str, profile_id: str, rewrites: Sequence[str]) -> str:
    """Return a profile's TOML with another id and default rewrites."""
    text = re.sub(rf"^{_CALIBRATED_COMMENT}.*\n", "", text)
    if f'\nid = "{profile_id}"\n' not in text:
        # an alias must belong to one profile only
        text = re.sub(r"^aliases = .*\n", "", text, flags=re.MULTILINE)
        text = re.sub(r'^id = ".*"', f'id = "{profile_id}"', text, count=1, flags=re.MULTILINE)
    names = ", ".join(f'"{name}"' for name in rewrites)
    return re.sub(r"^(\[processors\.\w+\])\n(?!rewrites)", rf"\1\nrewrites = [{names}]\n", text, flags=re.MULTILINE) if rewrites else text


def _from_relatives(out: Output, profile: "DeviceProfile", target: Path) -> dict[str, FitRow]:
    """Derive and write priors from the shipped profiles, and return their cross-validation."""
    from predictors.devices import list_devices
    from predictors.fits import PriorFile, write_fits
    from predictors.fitting.priors import fit_priors
    from predictors.measurements.networks import list_measurements

    with out.progress("reading"):
        tables = [load_measurements(name) for name in list_measurements()]
        profiles = [fitted for fitted in map(load_device, list_devices()) if fitted.fits]
    with out.progress("comparing") as step:
        priors = fit_priors(profile, profiles, tables, step)
    write_fits(target, PriorFile(profile.id, f"stretch profile fit {RELATIVES} --device {profile.id}", tuple(priors)))
    return {_fit_name(prior): _fit_row(prior, prior.left_out, prior.left_out.chips) for prior in priors}


def _fit_name(fit: Any) -> str:
    """Return the processor, core set and precision of a fit or prior as a name."""
    return f"{fit.processor}[{fit.core_set}] {fit.precision}"


def _fit_row(fit: Any, judged: Any, groups: int, **more: Any) -> FitRow:
    """Return the cross-validation of a fit or prior as a row."""
    shares = {key: getattr(judged, key) for key in ("networks", "within_20", "mape", "coverage")}
    return FitRow(groups=groups, low=fit.interval.low, high=fit.interval.high, **{"within_10": None} | shares | more)


def _show_fits(console: "Console", answer: FitAnswer) -> None:
    from stretch.report.fit import table

    calibrated = any(row.measure_next for row in answer.held_out.values())
    groups = "networks" if calibrated else "chips" if answer.measured_on is None else "families"
    # if networks are left out one by one, the number of groups equals the number of networks
    counts = (">networks",) if calibrated else (f">{groups}", ">networks")
    numbers = (*counts, ">within ±10 %", ">±20 %", ">mean error", ">in the 90 % interval", ">interval")
    rows = []
    for name, row in answer.held_out.items():
        shares = "" if row.within_10 is None else f"{row.within_10:.0%}", f"{row.within_20:.0%}", f"{row.mape:.1%}", f"{row.coverage:.0%}"
        sizes = (row.networks,) if calibrated else (row.groups, row.networks)
        rows.append((name, *map(str, sizes), *shares, f"{row.low:.2f} to {row.high:.2f}"))
    console.print(table(f"on {groups} left out", *numbers, rows=rows))
    for name, row in answer.held_out.items():
        if row.measure_next:
            console.print(f"{name}: the interval would narrow most with the time of {row.measure_next}", soft_wrap=True)
    console.print(f"written: {answer.file}", soft_wrap=True)
