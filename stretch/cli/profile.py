"""`stretch profile`: measure a machine and write its device profile, or import measurements of another device."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from predictors.errors import UsageError
from stretch.api.parameters import Parsed
from stretch.cli.extensions import tools_of
from stretch.cli.interrupt import WRITER_GRACE_S
from stretch.cli.output import Output, no_flags, only_flags
from stretch.planning.messages import command_line

if TYPE_CHECKING:
    from rich.console import Console

    from stretch.profile.run import ProfileResult

GRACE_S = WRITER_GRACE_S


def _names(texts: Sequence[str]) -> list[str]:
    names = [entry.strip() for entries in texts for entry in entries.split(",")]
    if not all(names):
        raise UsageError("--processors has an empty name", "write --processors cpu,gpu")
    return names


class ProfileOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a measurement, on any machine."""

    name: Annotated[str, typer.Option("--name", help="Id of the profile and base name of its files.")]
    processors: Annotated[
        Sequence[str],
        typer.Option(
            "--processors",
            help="Processors to measure, such as cpu,gpu, cpu[1core], cpu=openvino or cpu=openvino/int8. Default: all. Repeat or separate by commas.",
        ),
        Parsed(list[str] | None, _names),
    ] = ()
    budget: Annotated[
        float, typer.Option("--budget", help="Minutes for measurements; fitting takes about one more.", min=0.01, max=1e4)
    ] = 10.0
    folder: Annotated[Path, typer.Option("--out", "-o", help="Folder for the profile, its fits and its measurements.")] = Path()
    resume: Annotated[bool, typer.Option("--resume", help="Continue the measurements of an earlier run.")] = False
    most: Annotated[int | None, typer.Option("--networks", help="Maximum number of networks per processor.", min=1)] = None


class ImportOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options to import measurements of another device."""

    measured_file: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="Instead of measuring, import times of another device: a CSV of LiteRT's benchmark_model, or the output of benchncnn.",
        ),
    ] = None
    model: Annotated[str | None, typer.Option("--model", help="With --from: the network that benchmark_model ran.")] = None
    processor: Annotated[str | None, typer.Option("--processor", help="With --from: the processor, such as cpu[1large].")] = None
    precision: Annotated[
        str | None, typer.Option("--precision", help="With --from: fp32, fp16 or int8. Default: that stated in the file.")
    ] = None
    runtime: Annotated[str, typer.Option("--runtime", help="With --from: runtime and version.")] = ""


def profile(out: Output, options: ProfileOptions, imported: ImportOptions, tool: Annotated[Any, tools_of("profile")] = None) -> None:
    """Measure processors and write a device profile, or import measurements.

    Random networks in the styles of real ones run on each processor until the time is used up. Networks on which the
    current fits disagree run first. An interruption keeps all measurements; --resume continues from there.
    """
    if imported.measured_file is not None:
        only_flags("--from", "name folder measured_file model processor precision runtime")
        _ingest(out, imported, options)
        return
    imports = "model processor precision runtime"
    no_flags("a measurement", imports, "--model, --processor, --precision and --runtime go with --from")
    if tool is not None:
        tool.profile(out, options)
        return
    from stretch.profile.places import find_processors
    from stretch.profile.run import open_table, profile_machine

    places = find_processors(options.processors)
    table = open_table(options.name, options.folder, places, options.resume)
    with out.progress("measuring") as bar:
        done = profile_machine(options.name, places, table, options.budget * 60, bar, options.most)
    for collected in done.collected:
        if collected.unsteady:
            out.warn(f"the times of {collected.unsteady} networks on {collected.place.name} were unstable and are left out")
        if collected.slowed:
            out.warn(
                f"{collected.slowed} networks on {collected.place.name} were timed while other work slowed the machine down; profile it when it is quiet"
            )
        if collected.refused:
            out.warn(f"the {collected.place.delegate} delegate does not run {collected.refused} of the networks")
    data = _data(options.name, done, out)
    out.emit(data, lambda console: show_profile(console, data))


def _ingest(out: Output, imported: ImportOptions, options: ProfileOptions) -> None:
    """Import measurements of another device."""
    from stretch.profile.writing import MeasurementTarget, ingest
    from stretch.stages.network import read_graph

    if imported.processor is None:
        raise UsageError("--from needs to know what ran the networks", "name it as in a profile, as --processor cpu[1large]")
    assert imported.measured_file is not None
    where = MeasurementTarget(options.name, imported.processor, imported.precision, imported.runtime)
    with out.progress("capturing"):
        rows = ingest(imported.measured_file, imported.model, where, options.folder, lambda name: read_graph(name).graph)
    target = options.folder / f"{where.device}.measurements"
    known = {row.network: {"processor": f"{row.processor}[{row.core_set}]", "precision": row.precision, "ms": row.ms} for row in rows}
    data = {"profile": where.device, "file": None, "measurements": target, "processors": {}, "held_out": {}, "networks": known}
    text = f"{len(rows)} network{'s' if len(rows) > 1 else ''} added to {target}; `stretch profile fit` fits a profile to a dozen and more"
    out.emit(data | {"warnings": out.warnings}, lambda console: console.print(text))


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
        | {"resume_ms": crossing.resume_ms, "contention": crossing.contention, "contention_memory": crossing.contention_memory}
        for family, crossing in done.crossings.items()
    }
    paths = {"file": done.profile, "measurements": done.measurements}
    return {"profile": name, **paths, "processors": processors, "held_out": mean, "links": links, "warnings": out.warnings, "on": None}


def show_profile(console: "Console", data: dict[str, Any]) -> None:
    """Print the result of a measurement."""
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
        fixed_ms = row["fixed_ms"] + row["resume_ms"]
        console.print(
            f"{family}: an exchange {fixed_ms:.3f} ms, {row['to_gbs']:.3g} GB/s there, {row['back_gbs']:.3g} GB/s back; side by side "
            f"the cpu takes ×{row['contention'][0]:.2f} and {family} ×{row['contention'][1]:.2f}, moving memory "
            f"×{row['contention_memory'][0]:.2f} and ×{row['contention_memory'][1]:.2f}"
        )
    console.print(f"written: {data['file']}; try `{command_line('predict', 'resnet18', '--device', data['file'])}`")
