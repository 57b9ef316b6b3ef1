"""Results side by side, on terminals of any width."""

import io

import pytest
from rich.console import Console

from stretch.comparison.rows import CompareAnswer, ComparedRow
from stretch.report.comparison import HEADINGS, cells, print_comparison

ROWS = [
    ComparedRow(
        name="one", kind="plan", model="m", device="d", ms=12.345, low_ms=10.0, high_ms=20.0, speedup=1.25, macs_ratio=0.98, exact=True
    ),
    ComparedRow(name="two", kind="run", source="measured", model="m", device="d", ms=3.0, agreement=0.975),
    ComparedRow(name="three", kind="refused", model="m", device="d", reason="no design"),
]


def test_unknown_is_a_dash_and_never_a_number():
    assert [len(cells(row)) for row in ROWS] == [len(HEADINGS)] * 3
    assert cells(ROWS[0])[:5] == ("one", "12.35", "10.00 to 20.00", "predicted", "1.25")
    assert "exact" in cells(ROWS[0])
    assert "97.5%" in cells(ROWS[1])
    assert set(cells(ROWS[2])[1:]) == {"–"}


@pytest.mark.parametrize("width", [200, 80])
def test_every_row_is_printed_whole(width):
    stream = io.StringIO()
    print_comparison(Console(file=stream, width=width, color_system=None), CompareAnswer(rows=ROWS, warnings=[]))
    for row in ROWS:
        assert row.name in stream.getvalue()
    assert "12.3" in stream.getvalue()
    assert "…" not in stream.getvalue()
