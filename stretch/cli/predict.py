"""`stretch predict`: latency of a model on each processor of a device, without the device."""

from typing import TYPE_CHECKING, Annotated

import typer

from predictors.errors import UsageError
from stretch.cli.output import Output, verb

if TYPE_CHECKING:
    from rich.console import Console

    from stretch.stages.predict import Prediction


@verb
def predict(
    out: Output,
    model: Annotated[str, typer.Argument(help="A name of `stretch models`, package.module:factory or file.py:factory.")],
    device: Annotated[str, typer.Option("--device", "-d", help="Profile id (see `stretch devices`) or TOML file.")],
    processor: Annotated[str | None, typer.Option("--processor", help="Such as gpu or cpu[1large]; all if left out.")] = None,
    precision: Annotated[str | None, typer.Option("--precision", help="fp32, fp16 or int8; each processor's default if left out.")] = None,
    kernels: Annotated[bool, typer.Option("--kernels", help="List every kernel.")] = False,
    input_size: Annotated[str | None, typer.Option("--input", help="Channels, height and width, as 3x224x224.")] = None,
    trust_code: Annotated[bool, typer.Option("--trust-code", help="Allow file.py:factory to be executed.")] = False,
) -> None:
    """Predict the latency of a model per processor and per kernel."""
    # Names are checked before torch is imported, so that a misspelt one is told at once.
    from predictors.devices import load_device

    profile = load_device(device)
    names = [profile.processor(processor).name] if processor else list(profile.variants)
    if precision is not None and processor is None:
        names = [name for name in names if precision in profile.processor(name).precisions]
        if not names:
            raise UsageError(f"no processor of {profile.id} runs `{precision}`", "choose fp32, fp16 or int8")
    for name in names:
        profile.processor(name).check_precision(precision)
    shape = parse_input(input_size)

    from stretch.stages.network import read_network
    from stretch.stages.predict import predict_latency

    with out.progress("capturing"):
        graph = read_network(model, shape, weights="none", trust_code=trust_code).graph
    if not profile.calibrated:
        out.warn(f"the profile {profile.id} is derived from specifications, not fitted to measurements: treat predicted times as estimates")
    found = predict_latency(model, graph, profile, names, precision, kernels=kernels, warnings=out.warnings)
    out.emit(found, lambda console: _show(console, found, kernels))


def parse_input(text: str | None) -> tuple[int, int, int, int] | None:
    """Batch 1 and the shape written as ``3x224x224``; None for None.

    Raises:
        UsageError: If it is not three positive numbers.
    """
    if text is None:
        return None
    parts = text.lower().split("x")
    if len(parts) != 3 or not all(part.isascii() and part.isdigit() and 0 < int(part) < 1 << 16 for part in parts):
        raise UsageError(f"the input shape `{text}` is not channels, height and width", "write it as 3x224x224")
    channels, height, width = map(int, parts)
    return (1, channels, height, width)


def _show(console: "Console", found: "Prediction", kernels: bool) -> None:
    from rich.table import Table

    console.print(f"{found.model} on {found.device}: {found.macs / 1e6:.1f} M multiply-accumulates, {found.params / 1e6:.2f} M parameters")
    console.print()
    table = Table(box=None, pad_edge=False)
    for title in ("processor", "precision", "predicted ms", "low", "high"):
        table.add_column(title, justify="left" if title in ("processor", "precision") else "right")
    for name, row in found.processors.items():
        table.add_row(name, row.precision, f"{row.latency_ms:.2f}", f"{row.low_ms:.2f}", f"{row.high_ms:.2f}")
    console.print(table)
    if not kernels:
        return
    for name, row in found.processors.items():
        console.print()
        table = Table(box=None, pad_edge=False, title=f"kernels on {name}", title_justify="left")
        for title in ("kernel", "kind", "operators", "MMACs", "ms", "limited by"):
            table.add_column(title, justify="right" if title in ("operators", "MMACs", "ms") else "left")
        for each in row.kernels:
            table.add_row(each.name, each.kind, str(len(each.ops)), f"{each.macs / 1e6:.2f}", f"{each.ms:.3f}", each.bound)
        console.print(table)
