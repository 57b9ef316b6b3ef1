"""`stretch env`: what a bug report needs."""

import platform
from typing import TYPE_CHECKING

import msgspec

from stretch.cli.output import Output, verb

if TYPE_CHECKING:
    from rich.console import Console


class EnvItem(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the report."""

    name: str  # What.
    value: str  # Its value in words.


class EnvAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a bug report needs; the fields are the keys of `stretch env --json`."""

    nn_stretch: str  # Our version.
    python: str  # Python's version.
    system: str  # The operating system.
    processor: str  # The CPU.
    cores: list[int]  # CPU cores that this process may use.
    opencl: str | None  # OpenCL devices, or its loader; None where there is none.
    packages: dict[str, str | None]  # Version of each package that matters; None where it is not installed.
    imported_from: dict[str, str]  # Folder of each of our packages.
    warnings: list[str]  # What a person should know.
    items: list[EnvItem] = []  # All of it in words, in reading order.


@verb
def env(out: Output) -> None:
    """Print what a bug report needs: versions, processors, folders."""
    from stretch import __version__
    from stretch.environment import OTHERS, OURS, cores, folder, opencl_devices, other_owner, processor_name, version

    found = EnvAnswer(
        nn_stretch=__version__,
        python=platform.python_version(),
        system=platform.platform(),
        processor=processor_name(),
        cores=cores(),
        opencl=opencl_devices(),
        packages={name: version(name) for name in OTHERS},
        imported_from={name: str(folder(name)) for name in OURS},
        warnings=out.warnings,
    )
    answer = msgspec.structs.replace(found, items=_items(found))
    for name in OURS:
        if stranger := other_owner(name):
            out.warn(
                f"`{name}` also belongs to the distribution `{stranger}`, whose files may replace ours: pip uninstall {stranger}, then reinstall nn-stretch"
            )
        if folder(name).parent != folder("stretch").parent:
            out.warn(f"`{name}` is imported from {folder(name)}, not from beside `stretch`")

    def human(console: "Console") -> None:
        for item in answer.items:
            console.print(f"{item.name:<16} {item.value}", soft_wrap=True)

    out.emit(answer, human)


def _items(found: EnvAnswer) -> list[EnvItem]:
    """The report in words, in reading order."""
    lines = [("nn-stretch", found.nn_stretch), ("python", found.python), ("system", found.system), ("processor", found.processor)]
    lines += [("cores", ", ".join(map(str, found.cores))), ("opencl", found.opencl or "none")]
    lines += [(name, version or "not installed") for name, version in found.packages.items()]
    lines += [(f"{name} from", folder) for name, folder in found.imported_from.items()]
    return [EnvItem(name=name, value=value) for name, value in lines]
