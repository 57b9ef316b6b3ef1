"""`stretch profile tune`: tune the kernels of a bundle."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from predictors.errors import UsageError
from stretch.cli.interrupt import WRITER_GRACE_S
from stretch.cli.output import Output

if TYPE_CHECKING:
    from rich.console import Console

    from scheduler.answer import TuneAnswer
    from scheduler.bundle.load import Bundle
    from scheduler.delegates.base import Tuning

GRACE_S = WRITER_GRACE_S


def _complete_mode(start: str) -> list[str]:
    from scheduler.delegates import delegates

    return sorted({mode for name in delegates for mode in delegates.get(name).tunes if mode.startswith(start)})


def profile_tune(
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
            "--budget",
            help="Minutes for measurements, compilation included; no further kernel is started then, and an interruption (Ctrl-C) "
            "also keeps the results.",
            min=0.01,
            max=1e4,
        ),
    ] = 2.0,
    mapping: Annotated[
        Sequence[str],
        typer.Option(
            "--map",
            help="Place where a processor's subgraphs run here, such as gpu=opencl1; repeat or separate by commas.",
            autocompletion=_complete_mode,
        ),
    ] = (),
) -> None:
    """Tune the kernels of a bundle.

    Kernels of subgraphs on delegates that support it are measured, and the results are kept for this device and driver.
    """
    from scheduler.answer import TuneAnswer
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
    answer = TuneAnswer(
        bundle=bundle,
        device=tunings[0].device,
        mode=", ".join(dict.fromkeys(modes)),
        before_ms=sum(kernel.before_ms or 0.0 for kernel in kernels),
        after_ms=sum(kernel.after_ms or 0.0 for kernel in kernels),
        kernels=kernels,
        warnings=out.warnings,
    )
    out.emit(answer, lambda console: _show_tuned(console, answer))


def _tunings(bundle: "Bundle", mapping: Sequence[str], mode: str | None) -> "tuple[list[Tuning], list[str]]":
    """Return the tunings of the subgraphs whose delegate supports tuning, and their modes."""
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
