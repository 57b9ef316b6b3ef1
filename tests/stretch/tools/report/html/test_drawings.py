"""Drawings of a page: charts, timelines, and the network stretched over processors."""

import functools
import re

import pytest

from predictors.errors import UsageError
from scheduler.runtime.trace import Span, Trace
from stretch.planning.config import PlanConfig
from stretch.planning.plan import plan
from stretch.tools.report.execution import trace_bars
from stretch.tools.report.html.page import (
    KINDS,
    Bar,
    ChartInterval,
    Fact,
    Grid,
    Page,
    Section,
    Stretched,
    check_page,
    histogram,
    intervals,
    over_time,
    render,
    spread,
    stretched_rows,
    timeline,
    write_page,
)
from tests.predictors.networks import resnet50
from tests.predictors.specified import specified
from tests.stretch.tools.report.html.reading import checked

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
    "intervals": lambda name: intervals(
        name, "title", "words", [ChartInterval("one", 2, 1, 3, strong=True), ChartInterval("two", 1, 1, 1)], "ms"
    ),
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


@functools.cache
def planned(kinds):
    return plan(resnet50(), specified("mi9"), PlanConfig(processors=("cpu", "gpu"), kinds=kinds)).answer()


def drawn(rows, processors):
    return checked(render(Page("t", ["l"], sections=[Section("network", "h", (), [Stretched(rows, processors)])])))


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [("channels",), ("stretch", "rows")])
def test_every_branch_is_a_box_with_its_numbers(kinds):
    result = planned(kinds)
    rows, processors = stretched_rows(result)
    assert processors == ["cpu", "gpu"]
    text = drawn(rows, processors).text
    by_name = {row.name: row for row in rows}
    for segment in result.segments:
        if segment.kind == "whole":
            continue
        row = by_name[segment.name]
        assert KINDS[segment.kind] in text
        assert len(row.boxes) == len(segment.branches)
        for box, branch in zip(row.boxes, segment.branches, strict=True):
            assert box.processor == branch.processor
            assert f"{branch.predicted_ms:.2f} ms" in box.words
            assert box.words in text


@pytest.mark.slow
def test_bands_cover_the_map_and_say_what_is_computed_twice():
    result = planned(("rows",))
    rows, _ = stretched_rows(result)
    by_name = {row.name: row for row in rows}
    divided = [segment for segment in result.segments if segment.kind == "rows"]
    assert divided
    for segment in divided:
        boxes = by_name[segment.name].boxes
        assert sum(box.share for box in boxes) == pytest.approx(100)
        assert min(box.top for box in boxes) == 0
        assert any("computed twice" in box.words for box in boxes) == any(box.halo > 0 for box in boxes)
        extra = sum(branch.macs for branch in segment.branches) - segment.macs
        assert (extra > 0.01 * segment.macs) <= any(box.halo > 0 for box in boxes)


def test_chains_are_as_high_as_blocks_are_many():
    result = planned(("stretch",))
    rows, _ = stretched_rows(result)
    for segment in result.segments:
        for row in rows:
            if row.name == segment.name and segment.kind == "stretch":
                heights = {box.blocks: box.height for box in row.boxes} | {row.blocks: row.height}
                rounds = {round(height / blocks, 6) for blocks, height in heights.items()}
                assert len(rounds) == 1


TRACE = Trace(
    spans=(
        Span("s1/gpu", "gpu", "gpu", "subgraph", 3_000_000, 5_000_000),
        Span("s1/cpu", "cpu", "cpu", "subgraph", 2_000_000, 4_000_000),
        Span("s1/gpu in", "gpu", "gpu", "conversion", 2_000_000, 3_000_000),
        Span("s1/join", "cpu", "cpu", "join", 5_000_000, 6_000_000),
        Span("plan", "cpu", "cpu", "plan", 2_000_000, 6_000_000),
        Span("others", "gpu", "gpu", "load", 0, 9_000_000),
    ),
    start_ns=2_000_000,
    end_ns=6_000_000,
)


def test_bars_begin_where_the_inference_begins_and_plans_are_left_out():
    assert trace_bars(TRACE) == [
        Bar("gpu", -2.0, 9.0, "others", "others"),
        Bar("cpu", 0.0, 2.0, "computing", "s1"),
        Bar("gpu", 0.0, 1.0, "exchange", "s1"),
        Bar("gpu", 1.0, 2.0, "computing", "s1"),
        Bar("cpu", 3.0, 1.0, "join", "s1"),
    ]


HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "a & b",
    "{{ 7 * 7 }}",
    "</style><b>",
    "../../x",
    "é🙂",
    "--",
    "]]>",
    "$\\frac{$ $x$",
)


def page(name, *more):
    drawn = intervals("drawn", name, name, [ChartInterval(name, 1.0, 0.5, 2.0, strong=True)], "ms")
    return Page(
        title=name,
        lead=[name],
        facts=[Fact(name, name, name)],
        sections=[Section("one", name, [name], [Grid(name, (name, "b"), [(name, "1")], right=(1,)), drawn]), *more],
        warnings=[name],
        made_from=[("command", name)],
    )


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_text_wherever_they_stand(name):
    seen = checked(render(page(name)))
    assert seen.text.count(" ".join(name.split())) >= 10
    assert not {"b", "i"} & set(seen.tags)


def test_tables_and_pictures_have_names_for_those_who_do_not_see_them():
    seen = checked(render(page("name", Section("two", "two", (), [Grid("folded", ("a",), [("x",)], folded=True)]))))
    assert seen.tags.count("caption") == seen.tags.count("table") == 2
    assert ("svg", "role", "img") in seen.attributes
    assert ("svg", "aria-labelledby", "drawn-title drawn-words") in seen.attributes
    assert seen.tags.count("details") == 1
    assert ("html", "lang", "en") in seen.attributes


def test_written_in_one_step_and_readable_by_others(tmp_path):
    path = tmp_path / "page.html"
    path.write_text("before")
    write_page(page("after"), path)
    assert "after" in path.read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    assert path.stat().st_mode & 0o400


@pytest.mark.parametrize(
    ("name", "says"), [("page.txt", "is no .html file"), ("gone/page.html", "does not exist"), ("folder.html", "is a folder")]
)
def test_page_that_could_not_be_written_is_refused_beforehand(tmp_path, name, says):
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(UsageError, match=says):
        check_page(tmp_path / name)
    check_page(tmp_path / "page.html")
