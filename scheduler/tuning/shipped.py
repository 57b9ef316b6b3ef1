"""Tuned parameters that come with the package, one file a kind of device.

They were measured on one machine of the kind, and only what made whole
networks faster there is kept: see ``experiments/opencl_tuning``. What a user's
own tuning finds comes before them.
"""

from pathlib import Path

from scheduler.tuning.cache import Entry, read_entries

#: Stands where a user's file names the driver: a shipped one is for every driver of the kind of device.
ANY_DRIVER = "any"

FOLDER = Path(__file__).with_name("tables")


def shipped_path(kind: str) -> Path:
    """The file of a kind of device, whether there is one or not."""
    return FOLDER / f"{kind.replace(' ', '-')}.json"


def shipped_entries(kind: str) -> list[Entry]:
    """What is shipped for a kind of device; nothing for most."""
    return read_entries(shipped_path(kind), kind, ANY_DRIVER)
