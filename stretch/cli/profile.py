"""`stretch profile`: measure this machine and write its device profile."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from predictors.errors import UsageError
from stretch.cli.boards import Extras, On, SshConfig, There, Wheels, flags, not_there, where
from stretch.cli.interrupt import WRITER_GRACE_S
from stretch.cli.output import Output, verb

if TYPE_CHECKING:
    from rich.console import Console

    from scheduler.boards.board import Where
    from stretch.profiling.run import Profiled

GRACE_S = WRITER_GRACE_S


@verb
def profile(
    out: Output,
    name: Annotated[str, typer.Option("--name", help="Id of the profile and base name of its files.")],
    processors: Annotated[
        list[str] | None,
        typer.Option(
            "--processors",
            help="Processors to measure, such as cpu,gpu, cpu[1core] or cpu=openvino. Default: all. Repeat or separate by commas.",
        ),
    ] = None,
    budget: Annotated[
        float, typer.Option("--budget", help="Minutes for measurements; fitting takes about one more.", min=0.05, max=10_000)
    ] = 10.0,
    folder: Annotated[Path, typer.Option("--out", help="Folder for the profile, its fits and its measurements.")] = Path(),
    resume: Annotated[bool, typer.Option("--resume", help="Continue the measurements of an earlier run.")] = False,
    most: Annotated[int | None, typer.Option("--networks", help="Maximum number of networks per processor.", min=1)] = None,
    measured_file: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="Instead of measuring, import times of another device: a CSV of LiteRT's benchmark_model, or the output of benchncnn.",
        ),
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help="With --from: the network that benchmark_model ran.")] = None,
    processor: Annotated[str | None, typer.Option("--processor", help="With --from: the processor, such as cpu[1large].")] = None,
    precision: Annotated[
        str | None, typer.Option("--precision", help="With --from: fp32, fp16 or int8. Default: that stated in the file.")
    ] = None,
    runtime: Annotated[str, typer.Option("--runtime", help="With --from: runtime and version.")] = "",
    on: On = None,
    there: There = None,
    wheels: Wheels = None,
    extras: Extras = None,
    ssh_config: SshConfig = None,
) -> None:
    """Measure the processors of this machine or a board, fit kernel models, and write a profile for `predict` and `branch`.

    Random networks in the styles of real ones run on each processor until the time is used up. Networks on which the
    current fits disagree run first. An interruption keeps all measurements; --resume continues from there.
    """
    board = where(on, there, wheels, extras, ssh_config, more=("fit",))
    if measured_file is not None:
        if board is not None:
            not_there({"--from": (True, "it brings in what was measured already")})
        if processor is None:
            raise UsageError("--from needs to know what ran the networks", "name it as in a profile, as --processor cpu[1large]")
        _ingest(out, measured_file, model, (name, processor, precision, runtime), folder)
        return
    if (model, processor, precision, runtime) != (None, None, None, ""):
        raise UsageError("--model, --processor, --precision and --runtime go with --from", "what to measure here is said by --processors")

    if board is not None:
        measured = flags(out.quiet, processors=_split(processors or []), budget=budget, networks=most)
        _profile_there(out, board, (name, folder, resume), measured)
        return
    from stretch.profiling.places import find_places
    from stretch.profiling.run import open_table, profile_machine

    places = find_places(_split(processors or []))
    table = open_table(name, folder, places, resume)
    with out.progress("measuring") as bar:
        done = profile_machine(name, places, table, budget * 60, bar, most)
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
    out.emit(data, lambda console: _show(console, data))


def _profile_there(out: Output, place: "Where", target: tuple[str, Path, bool], words: list[str]) -> None:
    """Profile a board."""
    from scheduler.boards.board import open_board
    from stretch.profiling.there import check_here, profile_there

    name, folder, resume = target
    check_here(name, folder, resume)
    with open_board(place, out) as board:
        try:
            answer = profile_there(board, name, folder, words, resume, out.note)
        except KeyboardInterrupt:
            out.note(f"the measurements are kept on {place.host}; continue with --resume")
            raise
        data = {key: value for key, value in answer.items() if key not in ("schema", "version")} | {"on": board.answer}
    out.emit(data, lambda console: _show(console, data))


def _ingest(out: Output, measured_file: Path, model: str | None, where: tuple[str, str, str | None, str], folder: Path) -> None:
    """Import measurements of another device."""
    from stretch.profiling.ingest import Where, ingest
    from stretch.stages.network import read_graph

    with out.progress("capturing"):
        rows = ingest(measured_file, model, Where(*where), folder, lambda name: read_graph(name).graph)
    target = folder / f"{where[0]}.measurements"
    known = {row.network: {"processor": f"{row.processor}[{row.core_set}]", "precision": row.precision, "ms": row.ms} for row in rows}
    data = {
        "profile": where[0],
        "file": None,
        "measurements": target,
        "processors": {},
        "held_out": {},
        "networks": known,
        "warnings": out.warnings,
    }
    out.emit(
        data,
        lambda console: console.print(
            f"{len(rows)} network{'s' if len(rows) > 1 else ''} added to {target}; `stretch fit` fits a profile to a dozen and more"
        ),
    )


def _split(entries: list[str]) -> list[str]:
    names = [name.strip() for entry in entries for name in entry.split(",")]
    if any(not name for name in names):
        raise UsageError("--processors has an empty name", "write --processors cpu,gpu")
    return names


def _data(name: str, done: "Profiled", out: Output) -> dict[str, Any]:
    processors = {}
    for judged in done.judged:
        held = judged.fit.held_out
        processors[f"{judged.fit.processor}[{judged.fit.core_set}]"] = {
            "runtime": judged.fit.runtime,
            "networks": held.networks,
            "kernels": sum(group.kernels for group in judged.fit.groups.values()),
            "within_10": held.within_10,
            "within_20": held.within_20,
            "mape": held.mape,
            "coverage": held.coverage,
        }
    total = sum(row["networks"] for row in processors.values())
    mean = {key: sum(row[key] * row["networks"] for row in processors.values()) / total for key in ("within_10", "within_20", "mape")}
    links = {
        family: {
            "fixed_ms": crossing.link.fixed_ms,
            "to_gbs": crossing.link.to_gbs,
            "back_gbs": crossing.link.back_gbs,
            "contention": crossing.contention,
            "contention_memory": crossing.contention_memory,
        }
        for family, crossing in done.crossings.items()
    }
    return {
        "profile": name,
        "file": done.profile,
        "measurements": done.measurements,
        "processors": processors,
        "held_out": mean,
        "links": links,
        "warnings": out.warnings,
        "on": None,
    }


def _show(console: "Console", data: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in ("on networks left out", "networks", "kernels", "within ±10 %", "±20 %", "mean error", "in the 90 % interval"):
        table.add_column(title, justify="left" if title == "on networks left out" else "right")
    for name, row in data["processors"].items():
        shares = [f"{row[key]:.0%}" for key in ("within_10", "within_20")]
        table.add_row(name, str(row["networks"]), str(row["kernels"]), *shares, f"{row['mape']:.1%}", f"{row['coverage']:.0%}")
    console.print(table)
    for family, row in data["links"].items():
        console.print(
            f"{family}: an exchange {row['fixed_ms']:.3f} ms, {row['to_gbs']:.3g} GB/s there, {row['back_gbs']:.3g} GB/s back; side by side "
            f"the cpu takes ×{row['contention'][0]:.2f} and {family} ×{row['contention'][1]:.2f}, moving memory "
            f"×{row['contention_memory'][0]:.2f} and ×{row['contention_memory'][1]:.2f}"
        )
    console.print(f"written: {data['file']}; try `stretch predict resnet18 --device {data['file']}`")
