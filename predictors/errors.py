"""Errors that carry a hint for the user and an exit code for the command line."""

import difflib
import os
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

#: Environment variable that is set on a board, which gets its packages from another machine.
ON_BOARD = "NN_STRETCH_ON_BOARD"


def install_line(*extras: str) -> str:
    """Return the command that installs nn-stretch with optional packages.

    Args:
        extras: Extras of `pyproject.toml`, such as ``torch``; none for the base installation.
    """
    if extras and os.environ.get(ON_BOARD):
        return f"`--extras {','.join(extras)}` with `--on`"
    return f"`{install_command(*extras)}` in a checkout of nn-stretch"


def install_command(*extras: str) -> str:
    """Return the install command alone, for use in a checkout."""
    return f'pip install ".[{",".join(extras)}]"' if extras else "pip install ."


def upgrade_line() -> str:
    """Return the instruction to install a newer nn-stretch."""
    return f"upgrade the checkout of nn-stretch and install it again, with `{install_command()}` there"


class StretchError(Exception):
    """An error for the user: one sentence with the problem and its place, and a hint on how to fix it.

    Args:
        message: One sentence, without details of a traceback.
        hint: The user's next step, printed on a separate line.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(StretchError):
    """An invalid flag or value (exit code 2)."""

    exit_code = 2


class WholeNumbersError(UsageError):
    """A network of whole numbers can be predicted but not branched."""


class UnknownNameError(StretchError):
    """An unknown name (exit code 3)."""

    exit_code = 3

    @classmethod
    def among(cls, noun: str, name: str, known: Iterable[str]) -> "UnknownNameError":
        """Return an error for `name`, with a hint to the closest of the `known` names.

        Args:
            noun: Kind of thing, such as ``device``.
            name: The requested name.
            known: All valid names.
        """
        names = sorted(known)
        close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
        if close:
            hint = f"did you mean `{close[0]}`?"
        elif names:
            shown = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
            hint = f"known: {shown}"
        else:
            hint = f"no {noun} is registered"
        return cls(f"unknown {noun} `{name}`", hint)


class TightRule(NamedTuple):
    """A rule of a request that no design meets."""

    rule: str  # Name of the option that sets the rule.
    value: Any  # Requested value.
    nearest: Any = None  # Nearest value with a design; None if there is none or it is unknown.


class InfeasibleError(StretchError):
    """No design meets the constraints (exit code 4).

    Args:
        message: One sentence.
        hint: The user's next step.
        rules: The tightest rules, which must be relaxed together; empty if no rule of the request is the cause.
    """

    exit_code = 4

    def __init__(self, message: str, hint: str | None = None, rules: Sequence[TightRule] = ()) -> None:
        super().__init__(message, hint)
        self.rules = tuple(rules)


class MissingBackendError(StretchError):
    """An optional package or library is missing (exit code 5)."""

    exit_code = 5


def first_line(error: BaseException) -> str:
    """Return the first line of another library's error message, or the name of its type if the message is empty."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def on_one_line(text: str) -> str:
    """Return the text with escaped line breaks and control characters, which names from files may contain."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape", "surrogatepass").decode() for sign in text)


def need(holds: bool, problem: str, hint: str | None = None) -> None:
    """Raise StretchError with `problem` unless `holds` is true."""
    if not holds:
        raise StretchError(problem, hint)
