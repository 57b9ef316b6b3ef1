"""`stretch env`: environment information for a bug report."""

import platform
from typing import TYPE_CHECKING

import msgspec

from stretch.cli.output import Output, verb

if TYPE_CHECKING:
    from rich.console import Console


class EnvItem(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the report."""

    name: str
    value: str


class EnvAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Environment of this installation; the fields are the keys of `stretch env --json`."""

    nn_stretch: str  # Version of nn-stretch.
    python: str
    system: str  # The operating system.
    processor: str  # The CPU.
    cores: list[int]  # CPU cores that this process may use.
    opencl: str | None  # OpenCL devices, or the loader; None without OpenCL.
    packages: dict[str, str | None]  # Versions of relevant packages; None if not installed.
    imported_from: dict[str, str]  # Folder of each package of nn-stretch.
    warnings: list[str]
    items: list[EnvItem] = []  # All of the above as text, in reading order.


@verb
def env(out: Output) -> None:
    """Print versions, processors and folders for a bug report."""
    from stretch import __version__
    from stretch.environment import OTHERS, OURS, cores, folder, opencl_devices, other_owner, processor_name, version

    partial_answer = EnvAnswer(
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
    answer = msgspec.structs.replace(partial_answer, items=_items(partial_answer))
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


def _items(answer: EnvAnswer) -> list[EnvItem]:
    """The report as text, in reading order."""
    lines = [("nn-stretch", answer.nn_stretch), ("python", answer.python), ("system", answer.system), ("processor", answer.processor)]
    lines += [("cores", ", ".join(map(str, answer.cores))), ("opencl", answer.opencl or "none")]
    lines += [(name, version or "not installed") for name, version in answer.packages.items()]
    lines += [(f"{name} from", folder) for name, folder in answer.imported_from.items()]
    return [EnvItem(name=name, value=value) for name, value in lines]
