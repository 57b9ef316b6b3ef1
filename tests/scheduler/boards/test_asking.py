"""A program behind a real line that asks for files."""

import sys

import pytest

from predictors.errors import StretchError
from scheduler.boards.asking import ASKS, ask_for_file
from scheduler.boards.line import Line, boot

ASKING = """
import sys
from pathlib import Path
sys.path[:0] = {path!r}
from predictors.errors import StretchError
from scheduler.boards.asking import ask_for_file, can_ask
for name in sys.argv[1:]:
    try:
        ask_for_file(Path(name), "for " + name)
    except StretchError as error:
        print("problem:", error.message)
    else:
        print(Path(name).stat().st_size, Path(name).read_bytes()[:6].decode())
"""


@pytest.fixture
def line(tmp_path):
    with Line(["sh", "-c", boot([sys.executable])]) as made:
        made.ask("open", folder=str(tmp_path / "root"))
        yield made


def ask(line, make, *names):
    words = ["-c", ASKING.format(path=[entry for entry in sys.path if entry]), *names]
    return line.ask("run", None, make, words=words, imports=[], folder=line.ask("scratch")["name"])["answer"].splitlines()


@pytest.mark.slow
def test_program_gets_the_files_that_it_asks_for(line):
    asked = []

    def make(question):
        asked.append(question)
        return question.encode() * 200_000

    assert ask(line, make, "a", "b") == ["1000000 for af", "1000000 for bf"]
    assert asked == ["for a", "for b"]


def test_file_that_cannot_be_made_is_a_problem_of_the_program_alone(line):
    def make(question):
        if question == "for a":
            raise StretchError("no `a` today")
        return b"123456"

    assert ask(line, make, "a", "b") == ["problem: no `a` today", "6 123456"]


def test_end_that_is_closed_is_one_sentence(monkeypatch, tmp_path):
    import os

    asked, questions = os.pipe()
    answers, given = os.pipe()
    os.close(given)
    monkeypatch.setenv(ASKS, f"{questions},{answers}")
    with pytest.raises(StretchError, match="does not answer any more"):
        ask_for_file(tmp_path / "x", "y")
    for descriptor in (asked, questions, answers):
        os.close(descriptor)
