"""The page of each verb has the numbers and drawings of its result, and its tags match."""

import functools
import itertools
import re

import pytest

from predictors.errors import InfeasibleError, TightRule, UsageError
from predictors.predictor import LatencyPredictor
from scheduler.runtime.trace import Span, Trace
from stretch.planning.config import PlanConfig
from stretch.planning.messages import format_probability
from stretch.planning.plan import plan
from stretch.report.compared import CompareAnswer, ComparedRow
from stretch.report.comparison import comparison_page
from stretch.report.execution import trace_bars
from stretch.report.html.page import (
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
from stretch.report.plan import plan_bars, plan_page
from stretch.report.prediction import prediction_page, refusal_page, roofline_figure
from stretch.stages.predict import predict_latency
from tests.predictors.networks import resnet50, small_resnet
from tests.predictors.specified import specified
from tests.stretch.report.html.reading import checked

PREDICTED = [
    Bar("cpu", 0, 3, "computing", "s1"),
    Bar("gpu", 0, 1, "exchange"),
    Bar("gpu", 1, 4, "computing", "s1"),
    Bar("cpu", 5, 1, "join"),
]
BARS = {"predicted": PREDICTED, "measured": [Bar("cpu", 0, 2, "others", "load")]}
INTERVALS = [ChartInterval("one", 2, 1, 3, strong=True), ChartInterval("two", 1, 1, 1)]
DRAWN = {
    "timeline": lambda *names: timeline(*names, BARS, 6),
    "intervals": lambda *names: intervals(*names, INTERVALS, "ms"),
    "spread": lambda *names: spread(*names, [("links", 1.1, 0.8), ("times on gpu", 0.7, 1.9)], 1.0, "times as fast"),
    "histogram": lambda *names: histogram(*names, [1.0, 2.0, 2.0, 4.0], {"median": 2.0}, "ms"),
    "over_time": lambda *names: over_time(*names, [1.0, 2.0, 3.0], "ms"),
}


@pytest.mark.parametrize("kind", DRAWN)
def test_drawings_have_text_elements_and_a_description_and_share_no_ids(kind):
    first, second = (DRAWN[kind](name, "title", "words").svg for name in ("first", "second"))
    assert first.startswith("<svg ")
    assert '<title id="first-title">title</title><desc id="first-words">words</desc>' in first
    assert "<text" in first
    assert "width=" not in first.partition(">")[0]
    one, two = (set(re.findall(r' id="([^"]*)"', svg)) for svg in (first, second))
    assert one
    assert not one & two


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [("channels",), ("stretch", "rows")])
def test_every_branch_is_drawn_as_a_box_with_its_numbers(kinds):
    result = planned(kinds, "gpu")
    rows, processors = stretched_rows(result)
    assert processors == ["cpu", "gpu"]
    text = checked(render(Page("t", ["l"], sections=[Section("network", "h", (), [Stretched(rows, processors)])]))).text
    by_name = {row.name: row for row in rows}
    for segment in (segment for segment in result.run.segments if segment.kind != "whole"):
        assert KINDS[segment.kind] in text
        for box, branch in zip(by_name[segment.segment.name].boxes, segment.branches, strict=True):
            assert box.processor == branch.scale.processor
            assert f"{branch.ms:.2f} ms" in box.words
            assert box.words in text


def test_bars_start_at_the_inference_and_leave_out_plans():
    spans = [
        ("s1/gpu", "gpu", "subgraph", 3, 5),
        ("s1/cpu", "cpu", "subgraph", 2, 4),
        ("s1/gpu in", "gpu", "conversion", 2, 3),
        ("s1/join", "cpu", "join", 5, 6),
        ("plan", "cpu", "plan", 2, 6),
        ("others", "gpu", "load", 0, 9),
    ]
    recorded = tuple(Span(name, at, at, kind, start * 10**6, end * 10**6) for name, at, kind, start, end in spans)
    assert trace_bars(Trace(spans=recorded, start_ns=2_000_000, end_ns=6_000_000)) == [
        Bar("gpu", -2.0, 9.0, "others", "others"),
        Bar("cpu", 0.0, 2.0, "computing", "s1"),
        Bar("gpu", 0.0, 1.0, "exchange", "s1"),
        Bar("gpu", 1.0, 2.0, "computing", "s1"),
        Bar("cpu", 3.0, 1.0, "join", "s1"),
    ]


HOSTILE = (
    *("<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "a & b", "{{ 7 * 7 }}", "</style><b>", "../../x"),
    *("é🙂", "--", "]]>", "$\\frac{$ $x$"),
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
def test_hostile_names_are_escaped_everywhere(name):
    parsed = checked(render(page(name)))
    assert parsed.text.count(" ".join(name.split())) >= 10
    assert not {"b", "i"} & set(parsed.tags)


def test_tables_and_pictures_have_names_for_screen_readers():
    parsed = checked(render(page("name", Section("two", "two", (), [Grid("folded", ("a",), [("x",)], folded=True)]))))
    assert parsed.tags.count("caption") == parsed.tags.count("table") == 2
    assert parsed.tags.count("details") == 1
    expected = [("svg", "role", "img"), ("svg", "aria-labelledby", "drawn-title drawn-words"), ("html", "lang", "en")]
    assert set(expected) <= set(parsed.attributes)


def test_page_is_written_in_one_step_and_is_readable(tmp_path):
    path = tmp_path / "page.html"
    path.write_text("before")
    write_page(page("after"), path)
    assert "after" in path.read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    assert path.stat().st_mode & 0o400


@pytest.mark.parametrize(
    ("name", "message"), [("page.txt", "is no .html file"), ("gone/page.html", "there is no folder"), ("folder.html", "is a folder")]
)
def test_unwritable_page_is_refused_before_it_is_made(tmp_path, name, message):
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(UsageError, match=message):
        check_page(tmp_path / name)
    check_page(tmp_path / "page.html")


@functools.cache
def planned(kinds=("stretch",), other="dsp"):
    return plan(small_resnet(128), specified("mi9"), PlanConfig(processors=("cpu", other), kinds=kinds))


def text_of(result, built=None):
    return checked(render(plan_page(result, built))).text


@pytest.mark.slow
def test_page_of_a_plan_states_times_certainty_and_the_next_measurement():
    result = planned()
    text, predicted = text_of(result), result.predicted
    expected = (
        f"{predicted.makespan_ms:.2f} ms",
        f"{predicted.speedup:.2f}x",
        f"{predicted.sequential_same_macs_ms / predicted.makespan_ms:.2f}x",
        f"{predicted.makespan_low_ms:.2f} to {predicted.makespan_high_ms:.2f} ms",
        f"{format_probability(predicted.probability_faster['all'])} sure; measure next: {predicted.measure_next}",
        f"{result.macs_ratio:.1%}",
    )
    assert [part for part in expected if part not in text] == []
    assert not re.search("single:|same_macs|whole_graph", text)
    assert text.count("Branching is recommended: ") == 1


def test_bars_of_a_plan_have_its_times_without_overlap():
    result = planned()
    bars = plan_bars(result)
    computing = sum(bar.ms for bar in bars if bar.kind == "computing")
    assert abs(computing - sum(b.ms + b.contention_ms for s in result.run.segments for b in s.branches)) < 1e-9
    assert max(bar.start_ms + bar.ms for bar in bars) <= result.predicted.makespan_ms * (1 + 1e-9)
    for row in {bar.row for bar in bars}:
        intervals_of_row = sorted((bar.start_ms, bar.start_ms + bar.ms) for bar in bars if bar.row == row and bar.kind == "computing")
        assert all(end <= start + 1e-9 for (_, end), (start, _) in itertools.pairwise(intervals_of_row))


def test_comparison_of_rows_without_times_has_a_page():
    row = ComparedRow(name="x", kind="refused", model="m", device="d", reason="no")
    parsed = checked(render(comparison_page(CompareAnswer(rows=[row], warnings=[]))))
    assert ("svg" in parsed.tags, "nothing timed" in parsed.text) == (False, True)


@pytest.mark.slow
def test_page_of_a_prediction_has_processors_kernels_and_roofline():
    device = specified("mi9")
    latency = predict_latency("resnet50", resnet50(), device, list(device.processors), None, kernels=True)
    best = min(latency.processors, key=lambda name: latency.processors[name].latency_ms)
    figure = roofline_figure("resnet50", LatencyPredictor(device).predict(resnet50(), best), device, best)
    parsed = checked(render(prediction_page(latency, lambda: figure)))
    for name, row in latency.processors.items():
        assert f"{name} {row.precision} {row.latency_ms:.2f} {row.low_ms:.2f} {row.high_ms:.2f}" in parsed.text
        longest = max(row.kernels, key=lambda item: item.ms)
        assert f"{longest.name} {longest.kind}" in parsed.text
    assert parsed.tags.count("svg") == 2


def test_page_of_a_refusal_names_the_limits_and_the_best_processor():
    device = specified("mi9")
    alone = predict_latency("resnet50", resnet50(), device, list(device.processors), None).processors
    error = InfeasibleError("no design keeps <all> limits", "widen one", [TightRule("min_width", 0.9, 0.5), TightRule("alpha", 0.01)])
    text = checked(render(refusal_page("resnet50", "mi9", error, alone))).text
    best = min(alone, key=lambda name: alone[name].latency_ms)
    ms = f"{LatencyPredictor(device).predict(resnet50(), best).ms:.2f} ms"
    expected = ("No design keeps <all> limits. Widen one.", "min_width 0.9 0.5", "alpha 0.01 none found", f"run it on {best}", ms)
    assert [part for part in expected if part not in text] == []
