"""The page of a comparison shows every row, drawn or not."""

from stretch.comparison.rows import CompareAnswer, ComparedRow
from stretch.report.html.comparison_page import comparison_page
from stretch.report.html.page import render
from tests.stretch.report.html.reading import checked


def test_rows_without_times_have_a_page():
    seen = checked(
        render(
            comparison_page(CompareAnswer(rows=[ComparedRow(name="x", kind="refused", model="m", device="d", reason="no")], warnings=[]))
        )
    )
    assert "svg" not in seen.tags
    assert "nothing timed" in seen.text
