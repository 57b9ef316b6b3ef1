"""Timelines, test reports and pairs of the experiment on two real processors."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("pyopencl")

from experiments.real_processors.conformance import cases
from experiments.real_processors.pairs import ALONE, BURST, PLANNED, rows_of
from experiments.real_processors.timeline import shares
from scheduler.runtime.trace import Span, Trace


def test_shares_of_a_processor_add_up_to_the_inference():
    spans = [("a.gpu", "gpu", "subgraph", 0, 60), ("a.gpu rows", "gpu", "conversion", 0, 10), ("a.cpu", "cpu", "subgraph", 10, 90)]
    trace = Trace(tuple(Span(name, place, place, kind, start * 10**6, end * 10**6) for name, place, kind, start, end in spans), 0, 10**8)
    gpu, cpu = shares("measured", trace, {"a.gpu": 30.0}, {"a.gpu": 40.0, "a.cpu": 80.0})
    assert list(gpu.values()) == ["measured, gpu", 100.0, 30.0, 20.0, 10.0, 40.0]
    assert list(cpu.values()) == ["measured, cpu", 100.0, 80.0, 0.0, 0.0, 20.0]


def test_refused_test_case_is_not_a_failure(tmp_path):
    file = tmp_path / "report.xml"
    faults = {"ok": "", "refused": "hypothesis.errors.FailedHealthCheck: filtering out"}
    faults |= {"wrong": "assert False", "crashed": "worker 'gw0' crashed"}
    parts = (f'<testcase name="{name}">{fault and f"<failure message={fault!r}/>"}</testcase>' for name, fault in faults.items())
    file.write_text(f"<testsuites><testsuite>{''.join(parts)}</testsuite></testsuites>".replace("'gw0'", "gw0"))
    assert [outcome for _, outcome, _ in cases(file)] == ["passed", "refused", "failed", "failed"]


def test_pair_is_compared_with_the_best_single_processor_and_the_best_other_schedule():
    seconds = {PLANNED: 1.0, f"{ALONE}cpu": 3.0, f"{ALONE}gpu": 2.0, "both in flight on the gpu": 1.6}
    designs = [{"file": "a.toml", "processors": ["cpu", "gpu"]}, {"file": None, "processors": ["gpu"]}]
    answer = {"pairs_per_second": BURST, "designs": designs, "speedup_over_sequential": 2.1}
    row, contenders = rows_of("a@8+b", answer, {name: [value] * 5 for name, value in seconds.items()})
    assert (row["plan"], row["best single"], row["best other"]) == ("branched on cpu and gpu; gpu", "gpu", "both in flight on the gpu")
    assert (row["error %"], row["speed-up over one after the other on it"], row["speed-up over that"]) == (0, 2, 1.6)
    assert [contender["requests a second"] for contender in contenders] == [2 * BURST, pytest.approx(16 / 3, abs=0.1), 8, 10]
