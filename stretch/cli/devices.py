"""`stretch devices`: list the device profiles that ship with nn-stretch, or show one in detail."""

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from predictors.models.base import MEASURED, ORIGINS, Origin
from stretch.cli.output import Output, verb

if TYPE_CHECKING:
    from rich.console import Console

    from predictors.devices import DeviceProfile


class ListedProcessor(msgspec.Struct, frozen=True, kw_only=True):
    """A processor of a device."""

    precisions: list[str]
    default_precision: str
    core_sets: list[str]  # Selectable core sets.
    default_core_set: str | None  # None if it has no core sets.
    width_slice: int  # Preferred multiple of channel counts.
    origin: Origin  # Source of its predicted times by default: ``fit``, ``sibling``, ``relatives`` or ``roofline``.
    cores: dict[str, str]  # Description of each core set.
    measurements: dict[
        str, str
    ]  # Measurements that its times are fitted to, by core set and precision, such as ``1large fp32``; empty without a fit.


class ListedDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device profile."""

    id: str
    name: str  # Product name.
    soc: str  # System on chip.
    calibrated: bool  # Whether the profile was fitted to measurements.
    processors: dict[str, ListedProcessor]
    aliases: list[str]  # Other names that `--device` accepts.
    left_out: dict[str, str]  # Processors that the device has and the profile lacks, with the reason.
    sources: dict[str, str]  # Where the profile's numbers come from, by key.


class DevicesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The device profiles; the fields are the keys of `stretch devices --json`."""

    items: list[ListedDevice]


@verb
def devices(
    out: Output,
    device: Annotated[
        str | None,
        typer.Argument(metavar="[ID]", help="Show one profile in detail, by its id or the name of its device or chip."),
    ] = None,
) -> None:
    """List device profiles, their processors and measurements; for one profile also its sources and omitted processors."""
    from predictors.devices import list_devices, load_device

    items = [_listed(load_device(name)) for name in (list_devices() if device is None else [device])]
    out.emit(DevicesAnswer(items=items), lambda console: _print_list(console, items) if device is None else _print_one(console, items[0]))


def _print_list(console: "Console", items: list[ListedDevice]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in ("device", "name", "processors (default precision)", "measured there"):
        table.add_column(title)
    for item in items:
        processors = ", ".join(f"{name} ({p.default_precision})" for name, p in item.processors.items())
        measured = ", ".join(name for name, p in item.processors.items() if p.origin in MEASURED)
        table.add_row(item.id, item.name, processors, measured or "none")
    console.print(table)
    console.print("`stretch devices ID` shows one in detail; `--device` also accepts names of devices and chips, such as sm8750")


def _print_one(console: "Console", item: ListedDevice) -> None:
    def line(text: str) -> None:
        console.print(text, markup=False, highlight=False)

    line(f"{item.id}: {item.name}")
    line(f"chip: {item.soc}")
    if item.aliases:
        line(f"other names: {', '.join(item.aliases)}")
    for name, processor in item.processors.items():
        line("")
        line(f"{name}: {', '.join(processor.precisions)} ({processor.default_precision} by default)")
        line(f"  times in {processor.default_precision}: from {ORIGINS[processor.origin]}")
        for core_set, words in processor.cores.items():
            shown = name if core_set == processor.default_core_set else f"{name}[{core_set}]"
            line(f"  {shown}: {words}")
        for source in dict.fromkeys(processor.measurements.values()):
            where = ", ".join(key for key, source_id in processor.measurements.items() if source_id == source)
            line(f"  {where}: {source}")
    for name, why in item.left_out.items():
        line("")
        line(f"{name}: left out; {why}")
    line("")
    line("sources of the other numbers:")
    for key, words in item.sources.items():
        line(f"  {key}: {words}")


def _listed(device: "DeviceProfile") -> ListedDevice:
    from predictors.predictor import origin_of

    processors = {
        family: ListedProcessor(
            precisions=list(device.processor(family).precisions),
            default_precision=processor.default_precision,
            core_sets=list(processor.core_sets),
            default_core_set=processor.default_core_set,
            width_slice=device.processor(family).width_slice,
            origin=origin_of(device.processor(family), processor.default_precision),
            cores={name: core_set.cores for name, core_set in processor.core_sets.items()},
            measurements={
                f"{core_set} {precision}": fit.source for (name, core_set, precision), fit in device.fits.items() if name == family
            },
        )
        for family, processor in device.processors.items()
    }
    return ListedDevice(
        id=device.id,
        name=device.name,
        soc=device.soc,
        calibrated=device.calibrated,
        processors=processors,
        aliases=list(device.aliases),
        left_out=dict(device.left_out),
        sources=device.sources,
    )
