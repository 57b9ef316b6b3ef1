"""`stretch tune`: tune the kernels of a bundle's subgraphs for later runs."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stretch.cli.output import Output, verb

if TYPE_CHECKING:
    from rich.console import Console

    from scheduler.answer import TuneAnswer
    from scheduler.bundle.load import Bundle
    from scheduler.delegates import Delegate
    from scheduler.delegates.base import Tuning
    from scheduler.placement.place import Placement


@verb
def tune(
    out: Output,
    bundle: Annotated[Path, typer.Argument(help="Folder of a bundle.")],
    mode: Annotated[
        str | None,
        typer.Option(
            help="Search space, one of the delegate's modes. opencl: schedule (the default), tiles of the convolutions; "
            "fast, one work-group per kernel from a formula; exhaustive, every work-group."
        ),
    ] = None,
    budget: Annotated[
        float,
        typer.Option(
            help="Minutes, including compilation, after which no further kernel is started; an interruption (Ctrl-C) also keeps the results.",
            min=0.01,
            max=1e4,
        ),
    ] = 2.0,
    mapping: Annotated[
        list[str] | None,
        typer.Option("--map", help="Place where a processor's subgraphs run here, such as gpu=opencl1; repeat or separate by commas."),
    ] = None,
) -> None:
    """Tune the kernels of a bundle, on delegates that support it, and keep the results for this device and driver."""
    from scheduler.answer import tune_answer
    from scheduler.bundle.load import load_bundle

    loaded = load_bundle(bundle, check_hashes=True)
    end = time.monotonic() + 60 * budget
    with out.progress("compiling"):
        tunings, modes = _tunings(loaded, mapping or [], mode)
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
    out.emit(answer, lambda console: _print(console, answer))


def _tunings(bundle: "Bundle", mapping: list[str], mode: str | None) -> "tuple[list[Tuning], list[str]]":
    """Tunings of the subgraphs whose delegate supports tuning, and their modes."""
    from predictors.errors import UsageError
    from scheduler.delegates import delegates, get_delegate
    from scheduler.placement.mapping import bundle_precisions, parse_mapping, place_processors

    entries = bundle.manifest.subgraphs
    used = list(dict.fromkeys(entry.processor for entry in entries))
    placements = place_processors(used, parse_mapping(mapping), precisions=bundle_precisions(bundle.manifest))
    chosen = [entry for entry in entries if get_delegate(placements[entry.processor].delegate).tunes]
    if not chosen:
        where = ", ".join(f"{name} on {place.delegate}" for name, place in placements.items())
        able = [name for name in delegates if delegates.get(name).tunes]
        raise UsageError(
            f"no subgraph of {bundle.path} runs here on a delegate that can be tuned ({where})",
            f"map a processor to one, as --map gpu={able[0]}",
        )
    modes = [_mode(placements[entry.processor].delegate, mode) for entry in chosen]
    created = [_created(placements[entry.processor]) for entry in chosen]
    return [delegate.tuning_from(bundle, entry.name, known) for delegate, entry, known in zip(created, chosen, modes, strict=True)], modes


def _mode(delegate: str, wanted: str | None) -> str:
    """The requested mode, or the delegate's default."""
    from predictors.errors import UsageError
    from scheduler.delegates import get_delegate

    known = get_delegate(delegate).tunes
    if wanted is not None and wanted not in known:
        modes_text = "; ".join(f"{name}: {what}" for name, what in known.items())
        raise UsageError(f"`--mode {wanted}` is no mode of the {delegate} delegate", modes_text)
    return next(iter(known)) if wanted is None else wanted


def _created(place: "Placement") -> "Delegate":
    from scheduler.delegates import get_delegate

    return get_delegate(place.delegate).create(place.cores)


def _print(console: "Console", answer: "TuneAnswer") -> None:
    from rich.table import Table

    console.print(f"{answer.device}, mode {answer.mode}")
    table = Table(box=None, pad_edge=False)
    for title in ("kernel", "shape", "choice"):
        table.add_column(title)
    for title in ("before ms", "after ms"):
        table.add_column(title, justify="right")
    for row in sorted(answer.kernels, key=lambda row: -(row.after_ms or 0.0))[:30]:
        choice = "" if not row.choice else " ".join(f"{key}={value}" for key, value in row.choice.items())
        table.add_row(row.kernel, row.shape, choice, *("" if ms is None else f"{ms:.3f}" for ms in (row.before_ms, row.after_ms)))
    console.print(table)
    if len(answer.kernels) > 30:
        console.print(f"… and {len(answer.kernels) - 30} more; --json has them all")
    console.print(f"all kernels: {answer.before_ms:.2f} ms before, {answer.after_ms:.2f} ms after")
