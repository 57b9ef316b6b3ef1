"""The name of a board: what ``ssh`` takes as a destination, and nothing that it, or a user's configuration, could take for more."""

import re

from predictors.errors import UsageError

#: A user and a host, each without what a shell or a configuration's ``ProxyCommand`` would read as more than a name.
_HOST = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9._+-]*@)?\[?[A-Za-z0-9_:][A-Za-z0-9._:%-]*\]?")


def check_host(text: str) -> str:
    """The name of a host, with or without a user, as `user@host`."""
    if text.startswith("-"):
        raise UsageError(f"--on {text} begins with a dash, as an option of ssh does", "name the board as --on user@host")
    if not _HOST.fullmatch(text):
        raise UsageError(
            f"--on {text or '``'} is no name of a host",
            "name the board as --on user@host; ports and other options belong into the ssh configuration",
        )
    return text
