"""`stretch advise`: whether to branch a model, on each of many devices."""

from typing import TYPE_CHECKING, Annotated

import typer

from predictors.devices import load_devices
from stretch.cli.inputs import InputSizes, Model, TrustCode, read_inputs
from stretch.cli.output import Output, verb
from stretch.cli.pages import Html, check_html

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from stretch.stages.advise import Advice, BranchesAdvice

#: Devices up to which the terminal has the reason of each.
MOST_REASONS = 6


@verb
def advise(
    out: Output,
    model: Model,
    device: Annotated[
        str,
        typer.Option("--device", "-d", help="Profile id (see `stretch list devices`), wildcard pattern or TOML file; several with commas."),
    ] = "*",
    precision: Annotated[
        str | None,
        typer.Option(
            "--precision",
            help="fp32, fp16 or int8: each processor runs in it, or in the next wider one that it has. Default: that of each processor.",
        ),
    ] = None,
    html: Html = None,
    input_size: InputSizes = None,
    trust_code: TrustCode = False,
) -> None:
    """Say for each device whether to branch a model: the best single processor, exact and stretched branches, and what to do."""
    check_html(html)
    shape, profiles = read_inputs(input_size), load_devices(device)
    from stretch.api.advising import advise as answer

    # torch is imported, the network loaded and captured
    with out.progress("advising", total=len(profiles) + 3) as progress:
        advice = answer(model, profiles, precision=precision, input_shape=shape, trust_code=trust_code, progress=progress)
    if shape is None:
        out.note(f"input {'×'.join(map(str, advice.input))}: the model's usual size, as --input names none")
    advice = out.with_warnings(advice)
    if html is not None:
        from stretch.report.comparison import advice_page

        out.write_page(html, lambda command: advice_page(advice, command))
    out.emit(advice, lambda console: _show(console, advice))


def _show(console: "Console", advice: "Advice") -> None:
    from stretch.report.fit import Fitting

    console.print(f"{advice.model}: {advice.macs / 1e6:.1f} M multiply-accumulates; fastest as advised first", markup=False)
    console.print(Fitting([lambda: _table(advice, wide=True), lambda: _table(advice, wide=False)]))
    few = len(advice.answers) <= MOST_REASONS
    shown = [answer for answer in advice.answers if few or not answer.recommended.startswith("single:")]
    for item in shown:
        console.print()
        console.print(f"{item.device}: {item.advice}, for {item.reason}", markup=False, highlight=False)
        console.print(f"  {item.command}", markup=False, highlight=False, soft_wrap=True)
    if not few:
        console.print()
        console.print("`--device ID` gives the reason for a device that is not listed above, `--json` for all", markup=False)


def _table(advice: "Advice", *, wide: bool) -> "Table":
    """Devices × ways to run the network; without intervals where the terminal is narrow."""
    from stretch.report.fit import column, plain_table

    table = plain_table()
    for title in ("device", "best alone"):
        column(table, title)
    for title in ("ms", "exact", "stretched"):
        column(table, title, right=True)
    column(table, "what to do", fold=True)
    for answer in advice.answers:
        single = answer.best_single
        ratios = [_ratio(branches, wide=wide) for branches in (answer.exact, answer.stretched)]
        table.add_row(answer.device, f"{single.processor} {single.precision}", f"{single.ms:.2f}", *ratios, answer.advice)
    return table


def _ratio(branches: "BranchesAdvice | None", *, wide: bool) -> str:
    """Times as fast as the best single processor, with its interval."""
    if branches is None:
        return "–"
    return f"{branches.speedup:.2f}" + (f" ({branches.low:.2f} to {branches.high:.2f})" if wide else "")
