"""`stretch env`: what a bug report needs."""

import platform
from typing import TYPE_CHECKING, Any

from stretch.cli.output import Output, verb

if TYPE_CHECKING:
    from rich.console import Console


@verb
def env(out: Output) -> None:
    """Print what a bug report needs: versions, processors, folders."""
    from stretch import __version__
    from stretch.environment import OTHERS, OURS, cores, folder, opencl_devices, other_owner, processor_name, version

    data: dict[str, Any] = {
        "nn_stretch": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": processor_name(),
        "cores": cores(),
        "opencl": opencl_devices(),
        "packages": {name: version(name) for name in OTHERS},
        "imported_from": {name: str(folder(name)) for name in OURS},
    }
    for name in OURS:
        if stranger := other_owner(name):
            out.warn(
                f"`{name}` also belongs to the distribution `{stranger}`, whose files may replace ours: pip uninstall {stranger}, then reinstall nn-stretch"
            )
        if folder(name).parent != folder("stretch").parent:
            out.warn(f"`{name}` is imported from {folder(name)}, not from beside `stretch`")
    data["warnings"] = out.warnings
    data["items"] = [{"name": name, "value": value} for name, value in _lines(data)]

    def human(console: "Console") -> None:
        for name, value in _lines(data):
            console.print(f"{name:<16} {value}", soft_wrap=True)

    out.emit(data, human)


def _lines(data: dict[str, Any]) -> list[tuple[str, str]]:
    """The report as names and values, in reading order."""
    lines = [(key.replace("_", "-"), str(data[key])) for key in ("nn_stretch", "python", "system", "processor")]
    lines += [("cores", ", ".join(map(str, data["cores"]))), ("opencl", data["opencl"] or "none")]
    lines += [(name, version or "not installed") for name, version in data["packages"].items()]
    lines += [(f"{name} from", folder) for name, folder in data["imported_from"].items()]
    return lines
