"""A measurement of files, for people: in as many columns as the terminal has room for."""

from io import StringIO

from rich.console import Console

from scheduler.tools.bench.compare import BenchAnswer, BenchFile, Conditions, verdict
from stretch.tools.report.comparison import bench_page
from stretch.tools.report.fit import print_page
from tests.scheduler.tools.bench.test_compare import contender, drawn


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
