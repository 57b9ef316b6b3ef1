"""`stretch devices`: the device profiles that ship with nn-stretch."""

from typing import TYPE_CHECKING

from stretch.cli.output import Output, verb

if TYPE_CHECKING:
    from rich.console import Console


@verb
def devices(out: Output) -> None:
    """List device profiles, their processors and whether they were fitted to measurements."""
    from predictors.devices import list_devices, load_device

    items = []
    for device in map(load_device, list_devices()):
        processors = {
            family: {
                "precisions": list(device.processor(family).precisions),
                "default_precision": processor.default_precision,
                "core_sets": list(processor.core_sets),
                "default_core_set": processor.default_core_set,
                "width_slice": device.processor(family).width_slice,
            }
            for family, processor in device.processors.items()
        }
        items.append({"id": device.id, "name": device.name, "soc": device.soc, "calibrated": device.calibrated, "processors": processors})

    def human(console: "Console") -> None:
        from rich.table import Table

        table = Table(box=None, pad_edge=False)
        for title in ("device", "name", "processors (default precision)", "calibrated"):
            table.add_column(title)
        for item in items:
            processors = ", ".join(f"{name} ({p['default_precision']})" for name, p in item["processors"].items())
            table.add_row(item["id"], item["name"], processors, "yes" if item["calibrated"] else "no: from specifications")
        console.print(table)

    out.emit({"items": items}, human)
