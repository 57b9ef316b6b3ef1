"""What the pages tell readers to type works, in the order they read it."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from stretch.cli import VERBS, app
from tests.docs.pages import pages, snippets

#: A copy of the checkout runs the blocks of CONTRIBUTING (`tests/contracts/test_strangers_task.py`).
RUNNABLE = [
    page for page in pages() if str(page) != "CONTRIBUTING.md" and any(snippet.language in ("sh", "python") for snippet in snippets(page))
]


# the guides have up to twenty commands, each a process that imports torch
@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.torch
@pytest.mark.parametrize("page", RUNNABLE, ids=str)
def test_commands_of_a_page_succeed_in_their_order(page, tmp_path):
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for snippet in snippets(page):
        if snippet.language == "toml" and (name := re.match(r"# ([\w-]+\.toml)\n", snippet.text)):
            (tmp_path / name[1]).write_text(snippet.text)
            continue
        command = {"sh": ["bash", "-euc", snippet.text], "python": [sys.executable, "-c", snippet.text]}.get(snippet.language)
        if command is None:
            continue
        result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert result.returncode == 0, f"{snippet.text}\n{result.stderr}"


def commands():
    """Commands in blocks that are only shown, with their page."""
    for page in pages():
        for snippet in snippets(page):
            if snippet.language == "text":
                for line in snippet.text.splitlines():
                    yield page, shlex.split(line, comments=True) if "'" not in line else line.split()


def test_verbs_in_blocks_that_are_only_shown_exist():
    # the reference is generated from the verbs' own help, whose sentences may begin a line with the program's name
    shown = [(page, words) for page, words in commands() if str(page) != "docs/reference/cli.md" and len(words) > 1]
    named = {(str(page), words[1]) for page, words in shown if words[0].endswith("stretch")}
    assert named
    flags = {flag for param in typer.main.get_command(app).params for flag in param.opts}
    assert {verb for _, verb in named} <= {*VERBS, *flags}
