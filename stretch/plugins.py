"""Extensions that the core does not know by name: folders of `stretch/tools`, and entry points of other packages.

A tool is a folder of `stretch/tools`. The core looks for four files in it: `verb.py` has a verb of the folder's name,
`flags.py` adds flags to verbs, `exporters.py` adds forms of `stretch export`, `reader.py` reads
other files of networks for predictions.
"""

import functools
import warnings
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

#: Folder of the tools; the core works without it.
TOOLS = Path(__file__).with_name("tools")

#: Groups that other packages extend nn-stretch by.
GROUPS = ("nn_stretch.delegates", "nn_stretch.exporters", "nn_stretch.families")


def tool_modules(part: str) -> dict[str, str]:
    """Return the module of this name of each tool that has one, by tool; imports none."""
    return {path.parent.name: f"{__package__}.tools.{path.parent.name}.{part}" for path in sorted(TOOLS.glob(f"*/{part}.py"))}


@functools.cache
def load_tools(part: str) -> None:
    """Import the module of this name of each tool, so that it registers its additions."""
    for module in tool_modules(part).values():
        import_module(module)


@functools.cache
def load_plugins(group: str) -> tuple[str, ...]:
    """Import the entry points of one group, so that they register themselves.

    A plug-in that fails to import is left out with a warning: it must not
    take the whole program with it.

    Args:
        group: Such as ``nn_stretch.families``.

    Returns:
        Names of the entry points that were imported.
    """
    loaded = []
    for point in entry_points(group=group):
        try:
            point.load()
        except (Exception, SystemExit) as error:
            warnings.warn(f"{describe(point)} cannot be imported: {type(error).__name__}: {error}", stacklevel=2)
        else:
            loaded.append(point.name)
    return tuple(loaded)


def describe(point: EntryPoint) -> str:
    """Return a plug-in in words: its name, package and entry point."""
    package = f" of the package {point.dist.name}" if point.dist is not None else ""
    return f"the plug-in `{point.name}`{package} ({point.value}, {point.group})"


def culprit(error: BaseException) -> str | None:
    """Return the plug-in whose code an exception came through last, in words; None if it came through none.

    Where several plug-ins share the code, their package and its module are named.
    """
    points = [point for group in GROUPS for point in entry_points(group=group)]
    plugin: str | None = None
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and plugin is None and id(current) not in seen:
        seen.add(id(current))
        trace = current.__traceback__
        while trace is not None:
            frame = trace.tb_frame
            plugin = _owner_of(points, str(frame.f_globals.get("__name__", "")), frame.f_code.co_qualname) or plugin
            trace = trace.tb_next
        current = current.__cause__ or current.__context__
    return plugin


def _owner_of(points: list[EntryPoint], module: str, function: str) -> str | None:
    """Return the whom a function belongs to: the entry point of its class, else the only one of its package, else the package."""
    module_points = [point for point in points if point.module.partition(".")[0] == module.partition(".")[0]]
    exact = [point for point in module_points if point.module == module and point.attr == function.partition(".")[0]]
    if len(exact or module_points) == 1:
        return describe((exact or module_points)[0])
    if not module_points:
        return None
    package = module_points[0].dist.name if module_points[0].dist is not None else module
    return f"a plug-in of the package {package} ({module}:{function})"
