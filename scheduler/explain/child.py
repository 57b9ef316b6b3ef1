"""Runtimes are asked in a process of its own: foreign files may end it, and what it prints is the runtime's log."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from predictors.errors import MissingBackendError, StretchError, UnknownNameError, UsageError
from scheduler.explain.answer import Verdict
from scheduler.explain.model import open_model

#: Seconds after which a runtime that does not answer is ended.
LIMIT = 600

#: Characters that are kept of a log.
LOG = 200_000

_START = "import sys; from scheduler.explain.child import main; main(*sys.argv[1:])"

_ERRORS = {kind.__name__: kind for kind in (StretchError, UsageError, UnknownNameError, MissingBackendError)}


class Reply(msgspec.Struct, kw_only=True):
    """What the process answers."""

    result: Any = None  # What was asked for.
    error: tuple[str, str, str | None] | None = None  # Class, message and hint of an error.


def ask_runtime(file: Path, runtime: str, device: str | None) -> tuple[Verdict, str]:
    """What a runtime says of a file, and all it wrote meanwhile."""
    result, log = in_child("ask", str(file), runtime, device or "")
    return msgspec.convert(result, Verdict, str_keys=True), log


def in_child(*words: str) -> tuple[Any, str]:
    """Run a function of `_WORK` in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        answer, log = Path(folder) / "answer.json", Path(folder) / "log"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
        command = [sys.executable, "-c", _START, str(answer), *words]
        with log.open("wb") as stream:
            try:
                code = subprocess.run(
                    command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, env=environment, timeout=LIMIT
                ).returncode
            except subprocess.TimeoutExpired as error:
                raise StretchError(f"{words[2]} does not answer within {LIMIT} s", "ask it about a part of the model") from error
        output = log.read_bytes()[-LOG:].decode(errors="replace")
        if not answer.is_file():
            last = next((line.strip() for line in reversed(output.splitlines()) if line.strip()), "it wrote nothing")
            how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
            raise StretchError(f"the process that loads {words[1]} in {words[2]} {how}: {last[:300]}", "use another runtime")
        reply = msgspec.json.decode(answer.read_bytes(), type=Reply)
    if reply.error is not None:
        kind, message, hint = reply.error
        raise _ERRORS[kind](message, hint)
    return reply.result, output


def _ask(file: str, runtime: str, device: str) -> Verdict:
    from scheduler.explain.runtimes import asker

    return asker(runtime)(open_model(Path(file)), device or None)


def _compare(before: str, _runtime: str, after: str) -> float:
    from scheduler.explain.compare import largest_difference

    return largest_difference(Path(before), Path(after))


_WORK = {"ask": _ask, "compare": _compare}


def main(answer: str, work: str, *words: str) -> None:
    """Do what was asked for and write the answer, an error of ours too."""
    try:
        reply = Reply(result=_WORK[work](*words))
    except StretchError as error:
        kind = next(cls.__name__ for cls in type(error).__mro__ if cls.__name__ in _ERRORS)
        reply = Reply(error=(kind, error.message, error.hint))
    Path(answer).write_bytes(msgspec.json.encode(reply))
