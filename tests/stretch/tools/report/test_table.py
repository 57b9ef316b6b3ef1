"""A plan reads well on a terminal, also without colour."""

import functools
import io
from io import StringIO

import msgspec
import pytest
from rich.console import Console

from scheduler.tools.bench.compare import BenchAnswer, BenchFile, Conditions, verdict
from stretch.planning.config import PlanConfig
from stretch.planning.plan import plan
from stretch.planning.result import PlanAnswer
from stretch.tools.report.comparison import bench_page
from stretch.tools.report.fit import print_page, text_bars
from stretch.tools.report.plan import figures, plan_bars, plan_page
from tests.predictors.networks import resnet50
from tests.predictors.specified import specified
from tests.scheduler.tools.bench.test_compare import contender, drawn


@pytest.fixture(scope="module")
def data():
    return plan(resnet50(), specified("mi9"), PlanConfig(processors=("cpu", "dsp"))).answer()


def printed(answer, width=120):
    stream = io.StringIO()
    print_page(Console(file=stream, width=width, color_system=None), plan_page(answer, origins={}))
    return stream.getvalue()


def test_timeline_has_a_bar_per_processor_in_proportion_to_time(data):
    lines = text_bars(plan_bars(data), data.predicted.makespan_ms, 60)
    bars = {line.split()[0]: line[line.index("|") + 1 : line.rindex("|")] for line in lines[:2]}
    assert set(bars) == {"cpu", "dsp"}
    assert {len(bar) for bar in bars.values()} == {60}
    makespan = data.predicted.makespan_ms
    for name, bar in bars.items():
        busy = sum(b.predicted_ms for s in data.segments for b in s.branches if b.processor == name)
        assert bar.count("#") == pytest.approx(60 * busy / makespan, abs=len(data.segments))
    assert any(a == b == "#" for a, b in zip(*bars.values(), strict=True))


def test_figures_name_the_makespan_and_every_control(data):
    text = dict(figures(data))
    assert text["makespan"].startswith(f"{data.predicted.makespan_ms:.2f} ms")
    assert "(predicted)" in text["makespan"]
    assert text["best single processor"] == f"{data.predicted.best_single_ms:.2f} ms on cpu (int8)"
    assert text["recommended"] == "branched"
    assert text["search"].startswith("no design of the space is faster, of 10^")
    assert {"sequential, same MACs", "branched net as one graph", "operators split", "ideal split"} <= text.keys()


def words(plan):
    """Every name and number of the table."""
    for segment in plan.segments:
        yield segment.name
        yield "×".join(str(n) for n in segment.shape[1:])
        for branch in segment.branches:
            yield f"{branch.processor} {plan.precision[branch.processor]}"
            yield f"{branch.depth}/{segment.depth}"
            yield f"{branch.width}/{segment.width}"
            yield f"{branch.macs / 1e6:.1f}"
            yield f"{branch.predicted_ms + branch.contention_ms:.2f}"
            for kind in (branch.entry, branch.join):
                yield "" if kind == "none" else kind


@pytest.mark.torch
@pytest.mark.parametrize("columns", [60, 120])
def test_report_of_three_processors_keeps_every_name_and_number_at_any_width(captured, columns):
    pytest.importorskip("torch")
    data = _planned(captured, "resnet50")
    assert len({b.processor for s in data.segments for b in s.branches}) >= 2
    text = printed(data, columns)
    assert "…" not in text
    # sentences are left to the terminal to wrap
    table = text[text.index("\n\n") : text.index("\n\n", text.index("predicted ms"))]
    assert all(len(line) <= columns for line in table.splitlines())
    for word in words(data):
        assert word in " ".join(table.split())
    bars = [line for line in text.splitlines() if line.endswith("|")]
    assert len(bars) == len({b.processor for s in data.segments for b in s.branches})
    assert len({len(line) for line in bars}) == 1


@functools.cache
def _planned(captured, name):
    return plan(captured(name).graph, specified("mi9")).answer()


def test_long_processor_names_stand_whole_in_stacked_rows_and_shorter_bars(data):
    long = msgspec.json.decode(msgspec.json.encode(data).replace(b'"cpu"', b'"cpu[1large3med]"'), type=PlanAnswer)
    text = printed(long, 80)
    assert "…" not in text
    assert "cpu[1large3med]" in text
    assert all(len(line) <= 80 for line in text.splitlines() if line.endswith("|"))


@pytest.mark.slow
def test_rows_of_bands_and_what_is_computed_twice_are_shown():
    answer = plan(resnet50(), specified("mi9"), PlanConfig(processors=("cpu", "gpu"), lossless=True)).answer()
    segment = next(s for s in answer.segments if s.kind == "rows")
    for width in (120, 80, 50):
        text = printed(answer, width)
        assert all(f"{branch.rows[0]}:{branch.rows[1]}" in text for branch in segment.branches)
    reply = dict(figures(answer))
    assert (
        reply["computes"]
        == f"what the original computes, exact in fp32; fp16 rounds, {answer.repeated:.1%} of its MACs twice, halos {answer.halo_ms:.2f} ms of its branches together"
    )
    assert "to be trained" in reply["sequential, same MACs"]


def answer(rows=None, **told):
    """A measurement of some contenders."""
    rows = rows or [contender("net.onnx, onnxruntime", drawn(2e6, 1)), contender("net.onnx, openvino", drawn(3e6, 2), drawn(2e6, 1))]
    empty = {name: {} for name in ("governors", "mhz_before", "mhz_after", "celsius_before", "celsius_after")}
    conditions = Conditions(
        processor="A chip",
        system="Linux",
        cores=[0],
        process_cores=[0, 1],
        **(empty | {"load_before": None, "load_after": None, "stolen": None, "busy": None} | told),
    )
    file = BenchFile(
        name="net.onnx",
        path="net.onnx",
        kind="onnx",
        sha256="0" * 64,
        bytes=9,
        macs=None,
        inputs={"x": "float32 1x2"},
        input_sha256="1" * 64,
    )
    return BenchAnswer(
        verdict=verdict(rows),
        date="2026-01-01",
        seconds=1.0,
        seed=0,
        starts=5,
        rounds=30,
        warmup=[10] * 5,
        files=[file],
        contenders=rows,
        conditions=conditions,
        versions={},
        warnings=["mind"],
    )


def test_every_contender_and_its_median_are_shown_at_any_width():
    stream = StringIO()
    print_page(Console(file=stream, width=60), bench_page(answer()))
    assert all(row.name in stream.getvalue() for row in answer().contenders)
    assert all(f"{row.summary.median_ms:.3f}" in stream.getvalue() for row in answer().contenders)
