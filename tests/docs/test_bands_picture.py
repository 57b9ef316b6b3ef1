"""The picture of bands is what the rules of rows say."""

import importlib.util
import subprocess
import sys

import pytest

from tests.contracts.repository import ROOT


def module():
    spec = importlib.util.spec_from_file_location("make_bands_picture", ROOT / "docs" / "make_bands_picture.py")
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_picture_is_up_to_date():
    result = subprocess.run(
        [sys.executable, "docs/make_bands_picture.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize(("column", "rows"), [(3, 0), (2, 2), (1, 4), (0, 6)])
def test_rows_of_both_bands_grow_by_two_with_each_convolution(column, rows):
    drawn = module()
    graph = drawn.network()
    needs = {band: drawn.needed_rows(graph, *bounds)[graph.ops[column].name] for band, bounds in drawn.BANDS.items()}
    assert sum(drawn.owner(row, needs) == "both" for row in range(drawn.ROWS)) == rows
