"""The user's own ``ssh``: how it is called, and what it means when it fails.

Hosts, keys, users, ports and jumps are those of the user's configuration. It
is asked nothing on a terminal (`BatchMode`), so what would need an answer fails
with a sentence.
"""

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from predictors.errors import MissingBackendError, StretchError
from scheduler.boards.facts import SERIES
from scheduler.boards.line import NO_PYTHON, OLD_PYTHON, Line, LostError, boot

#: Whatever the configuration says: no terminal, no command and no forwarding of its own, and errors are told.
_ALWAYS = ("BatchMode=yes", "RemoteCommand=none", "ClearAllForwardings=yes", "PermitLocalCommand=no", "LogLevel=ERROR")

#: Where the configuration says nothing: a host that does not answer, or no longer, is given up.
_UNLESS_SAID = {
    "connecttimeout none": ("ConnectTimeout=20",),
    "serveraliveinterval 0": ("ServerAliveInterval=15", "ServerAliveCountMax=4"),
}


class _Reason(NamedTuple):
    pattern: str
    message: str
    hint: str


#: What ssh says, and what that means; the first that fits.
_REASONS = (
    _Reason("Could not resolve hostname", "there is no host {host}: its name is not known", "check the name, or add it to ~/.ssh/config"),
    _Reason("Connection refused", "{host} refuses connections", "is sshd running there, and on the port that the ssh configuration says?"),
    _Reason(
        "timed out|No route to host|unreachable|Host is down|kex_exchange_identification|Connection (closed|reset) by",
        "{host} does not answer",
        "is it switched on and on the network? try `ssh {host}`",
    ),
    _Reason(
        "REMOTE HOST IDENTIFICATION HAS CHANGED",
        "the key of {host} is not the one that is known",
        "find out why; if it was installed anew, remove the old key with `ssh-keygen -R`",
    ),
    _Reason(
        "Host key verification failed|host key is known",
        "the key of {host} is not known here",
        "log in once by hand with `ssh {host}`, and accept the key if it is the right one",
    ),
    _Reason(
        "Permission denied|Too many authentication failures",
        "{host} does not accept our key",
        "bring one there with `ssh-copy-id {host}`; one with a passphrase has to be in ssh-agent",
    ),
)


def connect(host: str, config: Path | None = None) -> Line:
    """A line to an agent on a board.

    Args:
        host: As `check_host` gave it.
        config: File to take instead of the user's ssh configuration.
    """
    if shutil.which("ssh") is None:
        raise MissingBackendError("there is no `ssh` here", "install OpenSSH's client, such as Debian's openssh-client")
    if config is not None and not config.is_file():
        raise StretchError(f"there is no ssh configuration {config}", "name a file with --ssh-config, or leave it out")
    try:
        return Line([*ssh_words(host, config), boot((f"python{SERIES}", "python3"))])
    except LostError as lost:
        raise explain_start(host, lost) from lost


def ssh_words(host: str, config: Path | None) -> list[str]:
    """Words that start ssh, up to the host."""
    start = ["ssh", *(("-F", str(config)) if config is not None else ())]
    shown = subprocess.run(
        [*start, "-G", "--", host], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
    )
    if shown.returncode:
        raise StretchError(
            f"ssh does not take its configuration: {_last(shown.stderr)}", "correct the file, or name another with --ssh-config"
        )
    settings = set(shown.stdout.splitlines())
    options = [*_ALWAYS, *(option for said, ours in _UNLESS_SAID.items() if said in settings for option in ours)]
    return [*start, "-T", *(word for option in options for word in ("-o", option)), "--", host]


def explain_start(host: str, lost: LostError) -> StretchError:
    """Why no agent answered."""
    greeting = _last(lost.greeting or "")
    if lost.code == NO_PYTHON:
        return MissingBackendError(
            f"there is no Python on {host}", f"install Python {SERIES} there, and see that `ssh {host} python{SERIES} -V` finds it"
        )
    if lost.code == OLD_PYTHON:
        return MissingBackendError(
            f"Python on {host} is older than 3.7, and here is {SERIES}: packages have to be of the same series",
            f"install Python {SERIES} there, as `python{SERIES}` on its PATH",
        )
    if lost.code == 255 and (reason := _reason(lost.stderr)) is not None:
        return StretchError(reason.message.format(host=host), reason.hint.format(host=host))
    said = _last(lost.stderr) or greeting or "it said nothing"
    if lost.code == 255:
        return StretchError(f"ssh does not connect to {host}: {said}", f"see what `ssh {host}` says")
    return StretchError(f"{host} does not start Python: {said}", f"see what `ssh {host} python{SERIES} -V` says")


def explain_loss(host: str, doing: str, lost: LostError) -> StretchError:
    """What it means that an agent fell silent while something was done."""
    said = _last(lost.stderr)
    return StretchError(
        f"the connection to {host} was lost while {doing}{f': {said}' if said else ''}",
        "what was copied whole is kept there; give the command again once the connection is back",
    )


def _reason(message: str) -> _Reason | None:
    return next((reason for reason in _REASONS if re.search(reason.pattern, message)), None)


def _last(text: str) -> str:
    """The last line that says something."""
    lines: Sequence[str] = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
