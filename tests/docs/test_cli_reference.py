"""The command-line reference is what the verbs say."""

import subprocess
import sys

import pytest

from stretch.cli import VERBS
from tests.contracts.repository import ROOT


@pytest.mark.slow
def test_reference_page_is_up_to_date():
    result = subprocess.run(
        [sys.executable, "docs/make_cli_reference.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_reference_page_has_a_section_for_each_verb():
    text = (ROOT / "docs" / "reference" / "cli.md").read_text()
    assert [line.removeprefix("## stretch ") for line in text.splitlines() if line.startswith("## stretch ")] == list(VERBS)
