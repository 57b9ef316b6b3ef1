"""`stretch profile`: measure a machine and write its device profile, fit a profile to measurements, or tune a bundle's kernels."""

import re
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer

from predictors.devices import load_device
from predictors.errors import StretchError, UsageError
from predictors.fits.store import fit_path
from predictors.measurements.networks import load_measurements
from stretch.cli.extensions import asked_for, extensions_of
from stretch.cli.interrupt import WRITER_GRACE_S
from stretch.cli.options import Call, calls
from stretch.cli.output import Output, only_flags, verb
from stretch.planning.messages import command_line

if TYPE_CHECKING:
    from rich.console import Console

    from predictors.devices import DeviceProfile
    from predictors.graph import OpGraph
    from scheduler.answer import TuneAnswer
    from scheduler.bundle.load import Bundle
    from scheduler.delegates.base import Tuning
    from stretch.profile.run import ProfileResult
    from stretch.profile.writing import MeasurementTarget as IngestWhere

GRACE_S = WRITER_GRACE_S

#: Operators of networks that no phone's DSP or GPU runs everywhere: no such network is proposed to be measured.
_RARE_KINDS = ("opaque", "layer_norm", "gelu")

#: First line of a calibrated profile, before the command that made it.
_CALIBRATED_COMMENT = "# Calibrated by whole networks:"

#: Argument for deriving priors from the fits of other profiles.
RELATIVES = "relatives"


@dataclass(frozen=True)
class ProfileOptions:
    """Options of a measurement, wherever it is."""

    name: str
    folder: Path
    resume: bool
    processors: tuple[str, ...]
    budget: float
    networks: int | None


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
    """Fits that were written; the fields are the keys of `stretch profile --fit --json`."""

    profile: str  # Id of the profile.
    file: str  # The written file.
    measured_on: str | None  # Measured device; None for `RELATIVES` and for a table of networks.
    held_out: dict[str, FitRow]  # Each fit by processor, core set and precision.
    warnings: list[str]  # What a person should know.


Name = Annotated[str | None, typer.Option("--name", help="Id of the profile and base name of its files; not with --fit and --tune.")]
Processors = Annotated[
    list[str] | None,
    typer.Option(
        "--processors",
        help="Processors to measure, such as cpu,gpu, cpu[1core], cpu=openvino or cpu=openvino/int8. Default: all. Repeat or separate by commas.",
    ),
]
Budget = Annotated[
    float | None,
    typer.Option(
        "--budget",
        help="Minutes for measurements, by default 10; fitting takes about one more. With --tune by default 2, compilation included; "
        "no further kernel is started then, and an interruption (Ctrl-C) also keeps the results.",
        min=0.01,
        max=1e4,
    ),
]
Folder = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "-o",
        help="Folder for the profile, its fits and its measurements; by default here. With --fit the file of the fits, by default next to the "
        "profile; with NETWORKS.csv the new profile, such as `mine`.",
    ),
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the measurements of an earlier run.")]
Most = Annotated[int | None, typer.Option("--networks", help="Maximum number of networks per processor.", min=1)]
MeasuredFile = Annotated[
    Path | None,
    typer.Option(
        "--from",
        help="Instead of measuring, import times of another device: a CSV of LiteRT's benchmark_model, or the output of benchncnn.",
    ),
]
Model = Annotated[str | None, typer.Option("--model", help="With --from: the network that benchmark_model ran.")]
Processor = Annotated[str | None, typer.Option("--processor", help="With --from: the processor, such as cpu[1large].")]
Precision = Annotated[str | None, typer.Option("--precision", help="With --from: fp32, fp16 or int8. Default: that stated in the file.")]
Runtime = Annotated[str, typer.Option("--runtime", help="With --from: runtime and version.")]
Measurements = Annotated[
    str | None,
    typer.Option(
        "--fit",
        metavar="MEASUREMENTS",
        help="Instead of measuring, fit the profile of --device. Give a NETWORKS.csv with times of a few whole networks, a folder of "
        "measurements, or names of those that ship. `relatives` is for processors without measurements.",
    ),
]
Device = Annotated[
    str | None,
    typer.Option("--device", "-d", help="With --fit: profile id (see `stretch list devices`) or TOML file that the fits are for."),
]
MeasuredOn = Annotated[
    str | None,
    typer.Option("--measured-on", help="With --fit: device in the tables, if it is another one with the same chip as the profile's."),
]
Statistic = Annotated[
    Literal["least", "median", "mean"], typer.Option(help="With --fit: which statistic of several runs NETWORKS.csv contains.")
]
Size = Annotated[
    str, typer.Option("--input", help="With --fit: input shape of the networks of NETWORKS.csv that state none, such as 3x224x224.")
]
Rewrite = Annotated[
    list[str] | None,
    typer.Option(
        help="With --fit: what networks of NETWORKS.csv had in place of some operators on every processor, such as grouped_conv=parts."
    ),
]
TrustCode = Annotated[bool, typer.Option("--trust-code", help="With --fit: execute the Python files that NETWORKS.csv names.")]
BundleOption = Annotated[
    Path | None,
    typer.Option(
        "--tune",
        metavar="BUNDLE",
        help="Instead of measuring networks, tune the kernels of a bundle's subgraphs, on delegates that support it, and keep the results for "
        "this device and driver.",
    ),
]
Mode = Annotated[
    str | None,
    typer.Option(
        help="With --tune: search space, one of the delegate's modes. opencl: schedule (the default), tiles of the convolutions; "
        "fast, one work-group per kernel from a formula; exhaustive, every work-group."
    ),
]
Mapping = Annotated[
    list[str] | None,
    typer.Option(
        "--map", help="With --tune: place where a processor's subgraphs run here, such as gpu=opencl1; repeat or separate by commas."
    ),
]


@verb
@calls(*extensions_of("profile"))
def profile(
    out: Output,
    *extensions: Call,
    name: Name = None,
    processors: Processors = None,
    budget: Budget = None,
    folder: Folder = None,
    resume: Resume = False,
    most: Most = None,
    measured_file: MeasuredFile = None,
    model: Model = None,
    processor: Processor = None,
    precision: Precision = None,
    runtime: Runtime = "",
    measurements: Measurements = None,
    device: Device = None,
    measured_on: MeasuredOn = None,
    statistic: Statistic = "median",
    size: Size = "",
    rewrite: Rewrite = None,
    trust_code: TrustCode = False,
    bundle: BundleOption = None,
    mode: Mode = None,
    mapping: Mapping = None,
) -> None:
    """Measure processors and write a device profile, fit one to measurements, or tune kernels.

    Random networks in the styles of real ones run on each processor until the time is used up. Networks on which the
    current fits disagree run first. An interruption keeps all measurements; --resume continues from there.
    """
    if measurements is not None:
        only_flags("--fit", "measurements device measured_on folder statistic size rewrite trust_code")
        if device is None:
            raise UsageError("a fit is of a device", "name its profile with --device")
        networks = {"statistic": statistic, "size": size, "rewrites": tuple(rewrite or ())}
        _fit(out, measurements, device, measured_on, folder, networks, trust_code)
        return
    if bundle is not None:
        only_flags("--tune", "bundle mode mapping budget")
        _tune(out, bundle, mode, budget or 2.0, mapping or [])
        return
    if name is None:
        raise UsageError(
            "a profile needs an id", "give it with --name, or fit an existing profile with --fit, or tune a bundle with --tune"
        )
    target = folder or Path()
    if measured_file is not None:
        only_flags("--from", "name folder measured_file model processor precision runtime")
        if processor is None:
            raise UsageError("--from needs to know what ran the networks", "name it as in a profile, as --processor cpu[1large]")
        from stretch.profile.writing import MeasurementTarget as IngestWhere

        _ingest(out, measured_file, model, IngestWhere(name, processor, precision, runtime), target)
        return
    only_flags(
        "a measurement",
        "name processors budget folder resume most on there wheels extras ssh_config",
        "--model, --processor, --precision and --runtime go with --from, others with --fit or --tune",
    )
    names = [entry.strip() for entries in processors or () for entry in entries.split(",")]
    if any(not entry for entry in names):
        raise UsageError("--processors has an empty name", "write --processors cpu,gpu")
    if (elsewhere := asked_for(extensions)) is not None:
        elsewhere.profile(out, ProfileOptions(name, target, resume, tuple(names), budget or 10.0, most))
        return
    from stretch.profile.places import find_processors
    from stretch.profile.run import open_table, profile_machine

    places = find_processors(names)
    table = open_table(name, target, places, resume)
    with out.progress("measuring") as bar:
        done = profile_machine(name, places, table, (budget or 10.0) * 60, bar, most)
    for collected in done.collected:
        if collected.unsteady:
            out.warn(f"the times of {collected.unsteady} networks on {collected.place.name} were unstable and are left out")
        if collected.slowed:
            out.warn(
                f"{collected.slowed} networks on {collected.place.name} were timed while other work slowed the machine down; profile it when it is quiet"
            )
        if collected.refused:
            out.warn(f"the {collected.place.delegate} delegate does not run {collected.refused} of the networks")
    data = _data(name, done, out)
    out.emit(data, lambda console: show_profile(console, data))


def _ingest(out: Output, measured_file: Path, model: str | None, where: "IngestWhere", folder: Path) -> None:
    """Import measurements of another device."""
    from stretch.profile.writing import ingest
    from stretch.stages.network import read_graph

    with out.progress("capturing"):
        rows = ingest(measured_file, model, where, folder, lambda name: read_graph(name).graph)
    target = folder / f"{where.device}.measurements"
    known = {row.network: {"processor": f"{row.processor}[{row.core_set}]", "precision": row.precision, "ms": row.ms} for row in rows}
    data = {"profile": where.device, "file": None, "measurements": target, "processors": {}, "held_out": {}, "networks": known}
    said = (
        f"{len(rows)} network{'s' if len(rows) > 1 else ''} added to {target}; `stretch profile --fit` fits a profile to a dozen and more"
    )
    out.emit(data | {"warnings": out.warnings}, lambda console: console.print(said))


def _data(name: str, done: "ProfileResult", out: Output) -> dict[str, Any]:
    from predictors.fits import Fit
    from stretch.profile.run import held_out

    keys = ("networks", "within_10", "within_20", "mape", "coverage")
    runtimes = {collected.place.name: collected.place.runtime for collected in done.collected}
    processors: dict[str, Any] = {}
    for fit in done.fits:
        at = f"{fit.processor}[{fit.core_set}]"
        kernels = sum(group.kernels for group in fit.groups.values()) if isinstance(fit, Fit) else 0
        processors[at] = {"runtime": runtimes[at], "kernels": kernels} | {key: getattr(held_out(fit), key, None) for key in keys}
    total = sum(row["networks"] for row in processors.values())
    mean = {
        key: sum(row[key] * row["networks"] for row in processors.values()) / total
        for key in ("within_10", "within_20", "mape")
        if all(row[key] is not None for row in processors.values())
    }
    links = {
        family: {key: getattr(crossing.link, key) for key in ("fixed_ms", "to_gbs", "back_gbs")}
        | {"contention": crossing.contention, "contention_memory": crossing.contention_memory}
        for family, crossing in done.crossings.items()
    }
    paths = {"file": done.profile, "measurements": done.measurements}
    return {"profile": name, **paths, "processors": processors, "held_out": mean, "links": links, "warnings": out.warnings, "on": None}


def show_profile(console: "Console", data: dict[str, Any]) -> None:
    """Print what a measurement came to."""
    from stretch.report.fit import table

    titles = ("on networks left out", ">networks", ">kernels", ">within ±10 %", ">±20 %", ">mean error", ">in the 90 % interval")
    rows = []
    for name, row in data["processors"].items():
        shares = (
            "" if row["within_10"] is None else f"{row['within_10']:.0%}",
            f"{row['within_20']:.0%}",
            f"{row['mape']:.1%}",
            f"{row['coverage']:.0%}",
        )
        rows.append((name, str(row["networks"]), str(row["kernels"] or "none timed"), *shares))
    console.print(table(*titles, rows=rows))
    for family, row in data["links"].items():
        console.print(
            f"{family}: an exchange {row['fixed_ms']:.3f} ms, {row['to_gbs']:.3g} GB/s there, {row['back_gbs']:.3g} GB/s back; side by side "
            f"the cpu takes ×{row['contention'][0]:.2f} and {family} ×{row['contention'][1]:.2f}, moving memory "
            f"×{row['contention_memory'][0]:.2f} and ×{row['contention_memory'][1]:.2f}"
        )
    console.print(f"written: {data['file']}; try `{command_line('predict', 'resnet18', '--device', data['file'])}`")


def _fit(
    out: Output, measurements: str, device: str, measured_on: str | None, file: Path | None, networks: dict[str, Any], trust_code: bool
) -> None:
    """Fit kernel models and cross-validate them, or calibrate a profile by times of a few whole networks."""
    from predictors.devices import PROFILE_FOLDER, list_devices
    from predictors.fits import prior_path

    related, on = measurements == RELATIVES, None
    if measurements.endswith(".csv"):
        if file is None or measured_on:
            raise UsageError(
                "a calibration by networks writes a profile of its own", "name it with `--out mine`; --measured-on is for tables"
            )
        target = file.with_name(f"{file.name.removesuffix('.toml')}.toml")
        name, rows = target.stem, _from_networks(out, measurements, device, target, networks, trust_code)
    else:
        profile = load_device(device)
        name = profile.id
        if related and measured_on:
            raise UsageError("--measured-on names a device in tables of measurements, `relatives` are fits", "leave it out")
        beside = prior_path if related else fit_path
        target = file or beside(PROFILE_FOLDER / f"{device}.toml" if device in list_devices() else Path(device))
        _check_parent(target)
        rows = _from_relatives(out, profile, target) if related else _from_tables(out, measurements, profile, measured_on, target)
        on = None if related else measured_on or name
    answer = FitAnswer(profile=name, file=str(target), measured_on=on, held_out=rows, warnings=out.warnings)
    out.emit(answer, lambda console: _show_fits(console, answer))


def _from_tables(out: Output, measurements: str, profile: "DeviceProfile", measured_on: str | None, target: Path) -> dict[str, FitRow]:
    """Fit and write kernel models; returns their cross-validation."""
    from predictors.fits import write_fits
    from predictors.fitting.fit import fit_device

    names = [measurements] if Path(measurements).is_dir() else measurements.split(",")
    with out.progress("reading"):
        tables = [load_measurements(name) for name in names]
    with out.progress("fitting") as step:
        fits = [fit.fit for table in tables for fit in fit_device(table, profile, measured_on, step, out.warn)]
    command = f"stretch profile --fit {shlex.quote(measurements)} --device {shlex.quote(profile.id)}"
    write_fits(target, profile.id, command + (f" --measured-on {shlex.quote(measured_on)}" if measured_on else ""), fits)
    return {_fit_name(fit): _fit_row(fit, fit.held_out, fit.held_out.families, within_10=fit.held_out.within_10) for fit in fits}


def _from_networks(out: Output, table: str, device: str, target: Path, networks: dict[str, Any], trust_code: bool) -> dict[str, FitRow]:
    """Calibrate a profile by times of whole networks, and write it; returns how well each network is predicted by the others."""
    from predictors.devices import PROFILE_FOLDER, list_devices, profile_path
    from predictors.files import write_whole
    from predictors.fits import prior_path, write_priors
    from predictors.fitting.calibration import calibrate, read_networks
    from predictors.models.roofline import MEASURED
    from predictors.predictor import origin_of
    from stretch.api.parameters import read_inputs
    from stretch.stages.network import read_graph

    statistic, size, rewrites = (networks[name] for name in ("statistic", "size", "rewrites"))
    path = profile_path(device)
    base = load_device(path)
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", target.stem) or (target.stem in list_devices() and target.parent.resolve() != PROFILE_FOLDER):
        raise UsageError(f"--out {target}: `{target.stem}` cannot be the id of a new profile", "choose another name, such as `mine`")
    _check_parent(target)
    rows = read_networks(Path(table))
    graphs: dict[tuple[str, str], OpGraph] = {}
    with out.progress("reading networks") as step:
        for row in rows:
            base.processor(row.processor).check_precision(row.precision or None)
            key = (row.model, row.input or size)
            if key not in graphs:
                side = f"3x{key[1]}x{key[1]}" if key[1].isdigit() else key[1]
                graphs[key] = read_graph(row.model, read_inputs([side] if side else None), trust_code=trust_code).graph
            step()
    candidates = {
        name: graph for name, graph in load_measurements("npu").graphs.items() if not any(op.kind in _RARE_KINDS for op in graph.ops)
    }
    known = target.exists()
    own = known and target.resolve() == path.resolve()
    reference = "" if own else base.id if path.parent.resolve() == PROFILE_FOLDER else str(path.resolve())
    source = f"{Path(table).name}, {statistic} of the runs of each network"
    priors, news = calibrate(base, reference, rows, lambda row: graphs[row.model, row.input or size], candidates, source, rewrites)
    words = ["stretch", "profile", "--fit", Path(table).as_posix(), "--device", device, "--out", target.stem, "--statistic", statistic]
    command = shlex.join(
        words
        + (["--input", size] if size else [])
        + [word for name in rewrites for word in ("--rewrite", name)]
        + ["--trust-code"] * trust_code
    )
    text = _profile_text(path.read_text(), target.stem, rewrites)
    write_whole(target, f"{_CALIBRATED_COMMENT} {command}\n{text}".encode(), "device profile")
    try:
        write_priors(prior_path(target), target.stem, command, priors)
    except OSError as error:
        if not known:
            target.unlink()
        raise StretchError(f"cannot write {prior_path(target)}: {error.strerror}", "choose another place with --out") from error
    timed = {base.processor(row.processor).family for row in rows}
    others = [base.processor(name) for name in base.default_processors if name not in timed]
    if guessed := [one.name for one in others if origin_of(one, one.default_precision) not in MEASURED]:
        out.warn(
            f"no network was timed on the {' and the '.join(guessed)} of {target.stem}: speed-ups compare measured times with estimates"
        )
    return {
        name: _fit_row(new.prior, new.prior.left_out, new.prior.left_out.chips, measure_next=new.next_network) for name, new in news.items()
    }


def _profile_text(text: str, profile_id: str, rewrites: Sequence[str]) -> str:
    """A profile's TOML under an id; its defaults stay as they are."""
    text = re.sub(rf"^{_CALIBRATED_COMMENT}.*\n", "", text)
    if f'\nid = "{profile_id}"\n' not in text:
        # names belong to one profile
        text = re.sub(r"^aliases = .*\n", "", text, flags=re.MULTILINE)
        text = re.sub(r'^id = ".*"', f'id = "{profile_id}"', text, count=1, flags=re.MULTILINE)
    names = ", ".join(f'"{name}"' for name in rewrites)
    return re.sub(r"^(\[processors\.\w+\])\n(?!rewrites)", rf"\1\nrewrites = [{names}]\n", text, flags=re.MULTILINE) if rewrites else text


def _check_parent(target: Path) -> None:
    if not target.parent.is_dir():
        raise StretchError(f"there is no folder {target.parent} to write {target.name} into", "make it, or choose another with --out")


def _from_relatives(out: Output, profile: "DeviceProfile", target: Path) -> dict[str, FitRow]:
    """Derive and write priors from the shipped profiles; returns their cross-validation."""
    from predictors.devices import list_devices
    from predictors.fits import write_priors
    from predictors.fitting.relatives import fit_priors
    from predictors.measurements.networks import list_measurements

    with out.progress("reading"):
        tables = [load_measurements(name) for name in list_measurements()]
        profiles = [fitted for fitted in map(load_device, list_devices()) if fitted.fits]
    with out.progress("comparing") as step:
        priors = fit_priors(profile, profiles, tables, step)
    write_priors(target, profile.id, f"stretch profile --fit {RELATIVES} --device {profile.id}", priors)
    return {_fit_name(prior): _fit_row(prior, prior.left_out, prior.left_out.chips) for prior in priors}


def _fit_name(fit: Any) -> str:
    """What a fit or a prior is of."""
    return f"{fit.processor}[{fit.core_set}] {fit.precision}"


def _fit_row(fit: Any, judged: Any, groups: int, **more: Any) -> FitRow:
    """How well a fit or a prior predicts what was left out of it."""
    shares = {key: getattr(judged, key) for key in ("networks", "within_20", "mape", "coverage")}
    return FitRow(groups=groups, low=fit.interval.low, high=fit.interval.high, **{"within_10": None} | shares | more)


def _show_fits(console: "Console", answer: FitAnswer) -> None:
    from stretch.report.fit import table

    calibrated = any(row.measure_next for row in answer.held_out.values())
    what = "networks" if calibrated else "chips" if answer.measured_on is None else "families"
    numbers = (f">{what}", ">networks", ">within ±10 %", ">±20 %", ">mean error", ">in the 90 % interval", ">interval")
    rows = []
    for name, row in answer.held_out.items():
        shares = "" if row.within_10 is None else f"{row.within_10:.0%}", f"{row.within_20:.0%}", f"{row.mape:.1%}", f"{row.coverage:.0%}"
        rows.append((name, str(row.groups), str(row.networks), *shares, f"{row.low:.2f} to {row.high:.2f}"))
    console.print(table(f"on {what} left out", *numbers, rows=rows))
    for name, row in answer.held_out.items():
        if row.measure_next:
            console.print(f"{name}: the interval would narrow most with the time of {row.measure_next}", soft_wrap=True)
    console.print(f"written: {answer.file}", soft_wrap=True)


def _tune(out: Output, bundle: Path, mode: str | None, budget: float, mapping: list[str]) -> None:
    """Tune the kernels of a bundle."""
    from scheduler.answer import tune_answer
    from scheduler.bundle.load import load_bundle

    loaded = load_bundle(bundle, check_hashes=True)
    end = time.monotonic() + 60 * budget
    with out.progress("compiling"):
        tunings, modes = _tunings(loaded, mapping, mode)
    choices: dict[tuple[str, str], Any] = {}
    with out.progress("tuning", total=sum(tuning.steps for tuning in tunings)) as bar:

        def progress(kernel: str) -> None:
            bar(f"{kernel}, {max(0.0, end - time.monotonic()):.0f} s left")

        for tuning in tunings:
            choices |= tuning.tune(max(0.0, end - time.monotonic()), progress)
    if time.monotonic() > end:
        out.warn(f"the budget of {budget:g} minutes was used up before all kernels were measured; run it again to continue")
    kernels = [row for tuning in tunings for row in tuning.rows(choices)]
    answer = tune_answer(bundle, tunings[0].device, modes, kernels, out.warnings)
    out.emit(answer, lambda console: _show_tuned(console, answer))


def _tunings(bundle: "Bundle", mapping: list[str], mode: str | None) -> "tuple[list[Tuning], list[str]]":
    """Tunings of the subgraphs whose delegate supports tuning, and their modes."""
    from scheduler.delegates import delegates, get_delegate
    from scheduler.placement.mapping import bundle_precisions, parse_mapping, place_processors

    entries = bundle.manifest.subgraphs
    used = list(dict.fromkeys(entry.processor for entry in entries))
    manifest = bundle.manifest
    placements = place_processors(used, parse_mapping(mapping), precisions=bundle_precisions(manifest), planned=manifest.delegates)
    chosen = [entry for entry in entries if get_delegate(placements[entry.processor].delegate).tunes]
    if not chosen:
        where = ", ".join(f"{name} on {place.delegate}" for name, place in placements.items())
        eligible = [name for name in delegates if delegates.get(name).tunes]
        raise UsageError(
            f"no subgraph of {bundle.path} runs here on a delegate that can be tuned ({where})",
            f"map a processor to one, as --map gpu={eligible[0]}",
        )
    modes, tunings = [], []
    for entry in chosen:
        place = placements[entry.processor]
        known = get_delegate(place.delegate).tunes
        if mode is not None and mode not in known:
            raise UsageError(
                f"`--mode {mode}` is no mode of the {place.delegate} delegate",
                "; ".join(f"{name}: {description}" for name, description in known.items()),
            )
        modes.append(mode or next(iter(known)))
        tunings.append(get_delegate(place.delegate).create(place.cores).tuning_from(bundle, entry.name, modes[-1]))
    return tunings, modes


def _show_tuned(console: "Console", answer: "TuneAnswer") -> None:
    from stretch.report.fit import table

    console.print(f"{answer.device}, mode {answer.mode}")
    rows = (
        (
            row.kernel,
            row.shape,
            " ".join(f"{key}={value}" for key, value in (row.choice or {}).items()),
            *("" if ms is None else f"{ms:.3f}" for ms in (row.before_ms, row.after_ms)),
        )
        for row in sorted(answer.kernels, key=lambda row: -(row.after_ms or 0.0))[:30]
    )
    console.print(table("kernel", "shape", "choice", ">before ms", ">after ms", rows=rows))
    if len(answer.kernels) > 30:
        console.print(f"… and {len(answer.kernels) - 30} more; --json has them all")
    console.print(f"all kernels: {answer.before_ms:.2f} ms before, {answer.after_ms:.2f} ms after")
