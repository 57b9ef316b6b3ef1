"""`stretch devices`: the device profiles that ship with nn-stretch."""

from typing import TYPE_CHECKING

import msgspec

from predictors.models.base import Origin
from stretch.cli.output import Output, verb

if TYPE_CHECKING:
    from rich.console import Console

    from predictors.devices import DeviceProfile


class ListedProcessor(msgspec.Struct, frozen=True, kw_only=True):
    """A processor of a device.

    Args:
        precisions: That it computes in.
        default_precision: Where none is asked for.
        core_sets: Sets of cores that may be asked for.
        default_core_set: Where none is asked for; None where it has no cores to choose from.
        width_slice: Channel counts are best multiples of it.
        origin: What its times are from by default: ``fit``, ``relatives`` or ``roofline``.
    """

    precisions: list[str]
    default_precision: str
    core_sets: list[str]
    default_core_set: str | None
    width_slice: int
    origin: Origin


class ListedDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device profile.

    Args:
        id: Its id.
        name: The device in words.
        soc: Its chip.
        calibrated: Whether the profile was fitted to measurements.
        processors: Its processors.
    """

    id: str
    name: str
    soc: str
    calibrated: bool
    processors: dict[str, ListedProcessor]


class DevicesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The device profiles; the fields are the keys of `stretch devices --json`.

    Args:
        items: Each profile.
    """

    items: list[ListedDevice]


@verb
def devices(out: Output) -> None:
    """List device profiles, their processors and whether they were fitted to measurements."""
    from predictors.devices import list_devices, load_device

    items = [_listed(device) for device in map(load_device, list_devices())]

    def human(console: "Console") -> None:
        from rich.table import Table

        table = Table(box=None, pad_edge=False)
        for title in ("device", "name", "processors (default precision)", "calibrated"):
            table.add_column(title)
        for item in items:
            processors = ", ".join(f"{name} ({p.default_precision})" for name, p in item.processors.items())
            table.add_row(
                item.id, item.name, processors, ", ".join(name for name, p in item.processors.items() if p.origin == "fit") or "none"
            )
        console.print(table)

    out.emit(DevicesAnswer(items=items), human)


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
        )
        for family, processor in device.processors.items()
    }
    return ListedDevice(id=device.id, name=device.name, soc=device.soc, calibrated=device.calibrated, processors=processors)
