"""Calling the command line, in this process and in others."""

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

#: A tiny network branches only where an exchange may take longer than its segment.
LOOSE = ("--alpha", "100")


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def message(self) -> str:
        """The error's sentence, after checking that stderr ends with it and a hint alone."""
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


def call(capsys: pytest.CaptureFixture[str], *words: object) -> Outcome:
    """Run the command line in this process."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        app([str(word) for word in words])
    return Outcome(stop.value.code, *capsys.readouterr())


def succeed(capsys: pytest.CaptureFixture[str], *words: object) -> Outcome:
    done = call(capsys, *words)
    assert done.code == 0, done.out + done.err
    return done


def perform(*words: object) -> Outcome:
    """Run the command line in this process where no test captures what it prints, as in a fixture."""
    with (
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(io.StringIO()) as err,
        pytest.raises(SystemExit) as stop,
    ):
        app([str(word) for word in words])
    return Outcome(stop.value.code, out.getvalue(), err.getvalue())


def spawn(code: str, *words: object, cwd: Path | None = None) -> Outcome:
    """Run the command line in a fresh process, after the statements in `code`."""
    command = [sys.executable, "-P", "-c", f"{code}\nfrom stretch.cli import app\napp()", *map(str, words)]
    result = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, env=os.environ)
    return Outcome(result.returncode, result.stdout, result.stderr)


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, hidden ones included, and every empty folder; none of the modules that Python compiles as it reads them."""
    paths = (path for path in sorted(folder.rglob("*")) if "__pycache__" not in path.parts)
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b"" for path in paths}


#: Words of a printed command in place of a value of the user's.
PLACES = frozenset({"FOLDER", "FILE", "DIR", "user@host"})


def printed(text: str) -> list[list[str]]:
    """The words of every command in a text that can be run as it is: within backticks, or at the end of a line."""
    found = re.findall(rf"`stretch ([^`]*)`|\bstretch ((?:{'|'.join(VERBS)}) [^`\n]*)$", text, re.MULTILINE)
    commands = [shlex.split(one or other) for one, other in found]
    return [words for words in commands if len(words) > 1 and not PLACES & set(words)]


def follow(capsys: pytest.CaptureFixture[str], text: str, *more: object) -> list[Outcome]:
    """Run every command in a text, with words behind each; there is one at least, and all succeed."""
    commands = printed(text)
    assert commands, text
    return [succeed(capsys, *words, *more) for words in commands]
