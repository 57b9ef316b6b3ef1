"""The page of a comparison shows every row, drawn or not."""

import pytest

from stretch.comparison.rows import CompareAnswer, ComparedRow
from stretch.report.html.comparison_page import comparison_page
from stretch.report.html.page import render
from tests.stretch.report.html.reading import checked

ROWS = [ComparedRow(name=f"row{i}", kind="plan", model="m", device="d", ms=float(i + 1), speedup=1.0 + i / 100) for i in range(100)]


@pytest.mark.slow
def test_every_row_is_in_the_table_and_the_first_are_drawn():
    seen = checked(render(comparison_page(CompareAnswer(rows=ROWS, warnings=["mind"]), "stretch compare")))
    for row in ROWS:
        assert row.name in seen.text
    assert "The first 60 of 100 are drawn." in seen.text
    assert "least time 1.00 ms row0" in seen.text


def test_rows_without_times_have_a_page():
    seen = checked(
        render(
            comparison_page(CompareAnswer(rows=[ComparedRow(name="x", kind="refused", model="m", device="d", reason="no")], warnings=[]))
        )
    )
    assert "svg" not in seen.tags
    assert "nothing timed" in seen.text
