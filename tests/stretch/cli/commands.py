"""Run the command line, in this process and in other processes."""

import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stretch.cli import VERBS, app

#: A tiny network branches only if a transfer may take longer than its segment.
LOOSE = ("--alpha", "100")


@dataclass(frozen=True)
class Outcome:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def message(self) -> str:
        """The error's sentence, after checking that stderr ends with this sentence and at most a hint."""
        _, result, end = f"\n{self.err}".rpartition("\nerror: ")
        assert result, self.err
        lines = end.splitlines()
        assert len(lines) == 1 or (lines[1] == "" and lines[2].startswith("hint: ") and len(lines) == 3), self.err
        assert "Traceback" not in self.err
        assert self.out == ""
        return lines[0]

    @property
    def data(self) -> Any:
        return json.loads(self.out)

    @property
    def hint(self) -> str:
        return self.err.partition("\nhint: ")[2].strip()


def call(capsys: pytest.CaptureFixture[str], *args: object) -> Outcome:
    """Run the command line in this process."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        app([str(arg) for arg in args])
    return Outcome(stop.value.code, *capsys.readouterr())


def succeed(capsys: pytest.CaptureFixture[str], *args: object) -> Outcome:
    outcome = call(capsys, *args)
    assert outcome.code == 0, outcome.out + outcome.err
    return outcome


def perform(*args: object) -> Outcome:
    """Run the command line in this process and capture its output without `capsys`, as a fixture of a module must."""
    with (
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(io.StringIO()) as err,
        pytest.raises(SystemExit) as stop,
    ):
        app([str(arg) for arg in args])
    return Outcome(stop.value.code, out.getvalue(), err.getvalue())


def spawn(code: str, *args: object, cwd: Path | None = None) -> Outcome:
    """Run the command line in a fresh process, after the statements in `code`."""
    command = [sys.executable, "-P", "-c", f"{code}\nfrom stretch.cli import app\napp()", *map(str, args)]
    result = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, env=os.environ)
    return Outcome(result.returncode, result.stdout, result.stderr)


def tree(folder: Path) -> dict[str, bytes]:
    """Contents by path of every file below a folder, hidden files and empty folders included, compiled Python modules excluded."""
    paths = (path for path in sorted(folder.rglob("*")) if "__pycache__" not in path.parts)
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b"" for path in paths}


#: Placeholders in a printed command for values of the user.
PLACES = frozenset({"FOLDER", "FILE", "DIR", "user@host"})


def printed(text: str) -> list[list[str]]:
    """Arguments of every complete command in a text, in backticks or at the end of a line."""
    found = re.findall(rf"`stretch ([^`]*)`|\bstretch ((?:{'|'.join(VERBS)}) [^`\n]*)$", text, re.MULTILINE)
    commands = [shlex.split(one or other) for one, other in found]
    return [command for command in commands if len(command) > 1 and not PLACES & set(command)]


def follow(capsys: pytest.CaptureFixture[str], text: str, *more: object) -> list[Outcome]:
    """Run every command in a text with `more` arguments appended; fail without a command or if one fails."""
    commands = printed(text)
    assert commands, text
    return [succeed(capsys, *command, *more) for command in commands]
