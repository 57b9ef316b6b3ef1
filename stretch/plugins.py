"""Entry points of other packages, loaded once."""

import functools
import warnings
from importlib.metadata import entry_points


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
        except Exception as error:
            warnings.warn(f"plug-in `{point.name}` ({point.value}) of {group} cannot be imported: {error}", stacklevel=2)
        else:
            loaded.append(point.name)
    return tuple(loaded)
