"""The picture of bands is what the rules of rows say."""

import subprocess
import sys

from tests.contracts.repository import ROOT


def test_picture_is_up_to_date():
    result = subprocess.run(
        [sys.executable, "docs/make_bands_picture.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")
