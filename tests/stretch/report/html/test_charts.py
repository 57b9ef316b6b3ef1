"""Charts hold what they were given, as text, and stand in a page without disturbing each other."""

import re

import pytest

from stretch.report.html.charts import Bar, Interval, histogram, intervals, over_time, spread, timeline

DRAWN = {
    "timeline": lambda name: timeline(
        name,
        "title",
        "words",
        {
            "predicted": [
                Bar("cpu", 0, 3, "computing", "s1"),
                Bar("gpu", 0, 1, "exchange"),
                Bar("gpu", 1, 4, "computing", "s1"),
                Bar("cpu", 5, 1, "join"),
            ],
            "measured": [Bar("cpu", 0, 2, "others", "load")],
        },
        6,
    ),
    "intervals": lambda name: intervals(name, "title", "words", [Interval("one", 2, 1, 3, strong=True), Interval("two", 1, 1, 1)], "ms"),
    "spread": lambda name: spread(name, "title", "words", [("links", 1.1, 0.8), ("times on gpu", 0.7, 1.9)], 1.0, "times as fast"),
    "histogram": lambda name: histogram(name, "title", "words", [1.0, 2.0, 2.0, 4.0], {"median": 2.0}, "ms"),
    "over_time": lambda name: over_time(name, "title", "words", [1.0, 2.0, 3.0], "ms"),
}


@pytest.mark.parametrize("kind", DRAWN)
def test_text_stays_text_and_stands_in_words_beside(kind):
    drawn = DRAWN[kind]("first")
    assert drawn.svg.startswith("<svg ")
    assert '<title id="first-title">title</title><desc id="first-words">words</desc>' in drawn.svg
    assert "<text" in drawn.svg
    assert "width=" not in drawn.svg.partition(">")[0]


@pytest.mark.parametrize("kind", DRAWN)
def test_two_in_one_page_share_no_name(kind):
    one, two = (set(re.findall(r' id="([^"]*)"', DRAWN[kind](name).svg)) for name in ("first", "second"))
    assert one
    assert not one & two


def test_rows_of_a_timeline_are_processors_of_each_run():
    text = DRAWN["timeline"]("first").svg
    for label in ("cpu, predicted", "gpu, predicted", "cpu, measured", "computes", "moves data", "joins branches", "taken by others"):
        assert f">{label}</text>" in text
    assert text.count(">s1</text>") == 2
