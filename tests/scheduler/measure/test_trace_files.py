import csv
import json

from scheduler.measure.trace_files import perfetto, write_csv, write_perfetto
from scheduler.runtime.trace import QueueDepth, Span, Trace

MS = 1_000_000


def trace(*spans, start=0, load=None):
    """Spans as (name, processor, start ms, end ms)."""
    made = tuple(Span(n, p, f"q{p}", "join" if n == "join" else "subgraph", int(a * MS), int(b * MS)) for n, p, a, b in spans)
    return Trace(made, start * MS, 10 * MS, load)


def test_perfetto_has_a_named_track_per_processor_and_microseconds(tmp_path):
    file = tmp_path / "t.json"
    write_perfetto(file, {"measured": [trace(("a", "cpu", 1, 4), ("b", "gpu", 3, 6))], "predicted": [trace(("a", "cpu", 0, 1))]})
    events = json.loads(file.read_text())["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names == {(1, 1): "cpu", (1, 2): "gpu", (2, 1): "cpu"}
    assert {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"} == {1: "measured", 2: "predicted"}
    spans = [(e["name"], e["pid"], e["tid"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert spans == [("a", 1, 1, 1000, 3000), ("b", 1, 2, 3000, 3000), ("a", 2, 1, 0, 1000)]


def test_counters_tell_how_many_subgraphs_run_and_wait_and_how_busy_the_machine_was():
    one = trace(("a", "cpu", 1, 4), ("b", "gpu", 3, 6), ("join", "cpu", 6, 7), load=1.5)
    depths = {"measured": [QueueDepth(2 * MS, {"cpu0": 1, "gpu": 0})]}
    events = [e for e in perfetto({"measured": [one]}, depths)["traceEvents"] if e["ph"] == "C"]
    assert [(e["ts"], e["args"]["subgraphs"]) for e in events if e["name"] == "running"] == [(1000, 1), (3000, 2), (4000, 1), (6000, 0)]
    assert [(e["ts"], e["args"]) for e in events if e["name"] == "waiting"] == [(2000, {"cpu0": 1, "gpu": 0})]
    assert [(e["ts"], e["args"]) for e in events if e["name"] == "load average"] == [(10000, {"load": 1.5})]


def test_csv_has_a_row_for_each_span_from_the_start_of_its_inference(tmp_path):
    write_csv(tmp_path / "t.csv", {"measured": [trace(("b", "gpu", 3, 6.5), ("a", "cpu", 1, 4), start=1)]})
    rows = list(csv.DictReader((tmp_path / "t.csv").read_text().splitlines()))
    assert [(r["name"], r["processor"], r["start_ms"], r["end_ms"], r["ms"]) for r in rows] == [
        ("a", "cpu", "0.0000", "3.0000", "3.0000"),
        ("b", "gpu", "2.0000", "5.5000", "3.5000"),
    ]
