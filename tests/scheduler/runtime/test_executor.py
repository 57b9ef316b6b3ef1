"""The threads that drive the state machine: steps that run ahead, failures and hangs."""

import _thread
import json
import os
import re
import statistics
import sys
import threading
import time
import warnings
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import StretchError
from scheduler.bundle.load import load_bundle
from scheduler.cores import available_cores
from scheduler.delegates.base import AsyncInvocation, Invocation, UnableError
from scheduler.delegates.null import NullDelegate
from scheduler.delegates.reference import ReferenceDelegate
from scheduler.faults.policy import FaultPolicy
from scheduler.placement.mapping import place_processors
from scheduler.placement.place import Placement, place_subgraphs
from scheduler.runtime.buffers import Buffers, wrap_invocation
from scheduler.runtime.code import CompiledSubgraphs
from scheduler.runtime.executor import Executor
from scheduler.runtime.plan import make_plan
from scheduler.runtime.sequential import TOLERANCES, Check, Sequential, max_error
from scheduler.runtime.session import Session
from scheduler.runtime.trace import Span, Trace, median_trace, write_perfetto
from scheduler.runtime.watchdog import Watchdog, interrupt
from tests.scheduler.bundles import Builder, one_after_the_other
from tests.scheduler.doubles import Hooked, flaky, numbers, whole


def executor_of(path, delegate, mapping=None, placed=None, in_flight=1):
    manifest, plan = (bundle := load_bundle(path)).manifest, make_plan(load_bundle(path).manifest)
    places = place_subgraphs(manifest.subgraphs, placed or place_processors(["cpu", "gpu"], mapping))
    code = CompiledSubgraphs(bundle, {place.delegate: delegate for place in places.values()})
    return Executor(plan, places, lambda: Buffers(plan, manifest.tensors), code, in_flight=in_flight)


@pytest.mark.linux
def test_thread_that_waits_for_a_processor_is_pinned_to_its_little_core(bundle_dir):
    cores, little = {}, max(os.sched_getaffinity(0))
    hooked = Hooked(lambda model, run, outputs: cores.update({model.stem: os.sched_getaffinity(0)}), "null")
    placed = place_processors(["cpu", "gpu"], {"gpu": "reference"})
    placed["gpu"] = replace(placed["gpu"], waits_on=little)
    built = executor_of(bundle_dir, hooked, placed=placed)
    try:
        built.run()
    finally:
        built.close()
    assert cores["s1.gpu"] == cores["s2.gpu"] == {little}
    assert cores["stem"] == {*placed["cpu"].cores}


REFERENCE = {"cpu": "reference", "gpu": "reference"}
X = numbers()


def test_trace_has_every_step_once_with_no_step_before_its_inputs(bundle_dir):
    executor = executor_of(bundle_dir, ReferenceDelegate(), REFERENCE)
    executor.buffers.arrays["x"][...] = 1
    trace = executor.run()
    executor.close()
    ends, starts = ({span.name: getattr(span, at) for span in trace.spans} for at in ("end_ns", "start_ns"))
    assert sorted(ends) == sorted([*executor.plan.subgraphs, *executor.plan.joins])
    for name, subgraph in executor.plan.subgraphs.items():
        writers = [w for w in (*executor.plan.subgraphs.values(), *executor.plan.joins.values()) if set(w.outputs) & set(subgraph.inputs)]
        assert all(ends[writer.name] <= starts[name] for writer in writers)
    assert trace.start_ns <= min(starts.values()) < max(ends.values()) <= trace.end_ns


def test_failing_join_is_one_error_and_the_next_run_is_complete(bundle_dir):
    executor, broken = executor_of(bundle_dir, NullDelegate()), [MemoryError("no room")]

    def join():
        if broken:
            raise broken.pop()

    executor.buffers.joins["s2.join"] = join
    with pytest.raises(StretchError, match=r"join `s2\.join` failed: no room"):
        executor.run()
    assert len(executor.run().spans) == 8
    executor.close()


def reference_with_fallback(armed):
    """The reference delegate with the faults of `armed`, and `cpu` as its fallback."""
    return flaky(armed, "reference", "cpu")


def test_blocking_invocation_of_an_asynchronous_placement_is_refused(bundle_dir):
    executor = executor_of(bundle_dir, reference_with_fallback({}), REFERENCE)
    before = dict(executor.placements)
    with pytest.raises(StretchError, match="`reference` says that it is asynchronous"):
        executor.replace("stem", Placement("gpu", "reference", (), "reference:gpu", "async", True, ""))
    assert executor.placements == before
    executor.close()


@pytest.mark.parametrize("threads", [0, 1, 2])
def test_sequential_model_agrees_with_onnx_runtime_on_any_number_of_cores(bundle_dir, threads):
    before = os.sched_getaffinity(0)
    model = Sequential(bundle_dir / "model.onnx", tuple(sorted(before)[:threads]))
    assert np.allclose(model.run(X), whole(bundle_dir, X), atol=1e-6)
    assert model.time() > 0
    assert os.sched_getaffinity(0) == before
    with pytest.raises(StretchError, match="takes"):
        model.run(np.zeros((1, 3, 9, 9), np.float32))


def test_max_error_is_relative_to_the_largest_expected_element_and_ignores_float_rounding():
    assert max_error(np.array([1.0, -4.5]), np.array([1.0, -4.0])) == pytest.approx(0.125)
    assert max_error(np.array([0.5]), np.array([0.0])) == pytest.approx(0.5)
    tiny = np.array([1e-5, 0.0])
    assert (max_error(tiny + 4e-7, tiny), max_error(tiny * 1.2, tiny)) == (0, pytest.approx(0.2, abs=0.05))
    assert max_error(tiny - 1e-5 + 4e-7, tiny - 1e-5) > 0.01
    assert np.isnan(max_error(np.array([np.nan, 0.0]), tiny))


WANT = np.arange(6, dtype=np.float32)


class Writes(Invocation):
    def __init__(self, array, *values):
        self.array, self.values = array, list(values)

    def run(self):
        self.array[:] = self.values.pop(0)


class WritesLater(Writes, AsyncInvocation):
    def enqueue(self):
        pass

    def wait(self):
        Writes.run(self)

    def times(self):
        return (1, 2)


def checked_invocation(kind, values, policy, other=lambda: ("cpu", [WANT]), precision="fp32"):
    array = np.zeros(6, np.float32)
    return wrap_invocation(kind(array, *values), [], check=Check([array], other, precision, [TOLERANCES[precision]], policy))


@pytest.mark.parametrize("kind", [Writes, WritesLater])
def test_unexpected_nan_and_wrong_numbers_in_spot_checks_are_found(kind):
    nan = WANT.copy()
    nan[2] = np.nan
    for values, policy, message in (([WANT, nan], FaultPolicy(), "NaN"), ([WANT * 2] * 3, FaultPolicy(spot_every=3), "off by 1")):
        call = checked_invocation(kind, values, policy)
        for _ in values[1:]:
            call.run()
        with pytest.raises(UnableError, match=f"{message}.*delegate `cpu`"):
            call.run()


@pytest.mark.parametrize(
    ("factor", "other", "precision"),
    [(1.2, lambda: ("cpu", [WANT]), "int8"), (np.inf, lambda: None, "fp32"), (np.inf, lambda: ("cpu", [WANT * np.inf]), "fp32")],
    ids=["explained by rounding", "no other", "none there either"],
)
@pytest.mark.filterwarnings("ignore:invalid value")
def test_rounding_and_results_without_a_comparison_are_no_fault(factor, other, precision):
    checked_invocation(Writes, [WANT * factor], FaultPolicy(spot_every=1), other, precision).run()
    call = checked_invocation(WritesLater, [WANT], FaultPolicy())
    assert (isinstance(call, AsyncInvocation), call.times(), call.conversions()) == (True, (1, 2), ())


MS = 1_000_000


def trace(*spans):
    """Spans as (name, processor, start ms, end ms)."""
    built = tuple(Span(n, p, f"q{p}", "join" if n == "join" else "subgraph", int(a * MS), int(b * MS)) for n, p, a, b in spans)
    return Trace(built, 0, 10 * MS)


def test_perfetto_trace_has_a_named_track_per_processor_and_times_in_microseconds(tmp_path):
    write_perfetto(tmp_path / "t", {"measured": [trace(("a", "cpu", 1, 4), ("b", "gpu", 3, 6))], "predicted": [trace(("a", "cpu", 0, 1))]})
    events = json.loads((tmp_path / "t").read_text())["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names == {(1, 1): "cpu", (1, 2): "gpu", (2, 1): "cpu"}
    assert {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"} == {1: "measured", 2: "predicted"}
    spans = [(e["name"], e["pid"], e["tid"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert spans == [("a", 1, 1, 1000, 3000), ("b", 1, 2, 3000, 3000), ("a", 2, 1, 0, 1000)]


times = st.tuples(st.integers(0, 100), st.integers(0, 100)).map(sorted)


@given(st.lists(times, max_size=6), st.lists(times, max_size=6))
def test_overlap_agrees_with_counting_ticks_and_joins_do_not_count(cpu, gpu):
    """Oracle: the sum over ticks of running spans on one processor times running spans on the other."""
    spans = [("a", "cpu", *t) for t in cpu] + [("b", "gpu", *t) for t in gpu] + [("join", "gpu", 0, 100)]
    expected = sum(sum(a <= t < b for a, b in cpu) * sum(a <= t < b for a, b in gpu) for t in range(100))
    result = trace(*spans)
    assert result.overlap_ms("cpu", "gpu") == result.overlap_ms("gpu", "cpu") == pytest.approx(expected)
    busy = {"cpu": sum(b - a for a, b in cpu), "gpu": sum(b - a for a, b in gpu)}
    assert {name: ms for name, ms in result.busy_ms().items() if ms} == {name: ms for name, ms in busy.items() if ms}
    assert result.makespan_ms == 10


@given(st.lists(st.integers(0, 100), min_size=1))
def test_typical_inference_is_the_one_with_the_median_makespan(lengths):
    traces = [Trace((), 0, ms * MS) for ms in lengths]
    assert median_trace(traces).makespan_ms == statistics.median_low(lengths)


@pytest.fixture
def path(tmp_path):
    return one_after_the_other(tmp_path / "bundle")


@pytest.mark.parametrize("broken", [None, "s1.gpu", "s2.gpu", "s3.gpu"])
def test_steps_run_ahead_on_a_queue_run_once_and_a_failed_one_is_repeated_elsewhere_before_its_readers(path, broken):
    armed, steps = {}, ["s1.gpu", "s2.gpu", "s3.gpu"]
    delegate = reference_with_fallback(armed)
    with Session(path, {"gpu": "reference"}, delegates={"reference": delegate}) as session:
        session(X)
        armed |= {} if broken is None else {broken: UnableError("it cannot any more")}
        with warnings.catch_warnings(action="ignore" if broken else "error"):
            for number in range(3):
                x = X * (number + 1)
                assert np.allclose(session(x), whole(path, x), atol=1e-5)
        assert broken or [span.name for span in session.trace.spans] == ["stem", *steps, "head"]
        assert {name: session.subgraph_placements[name].delegate for name in steps} == {
            name: "cpu" if name == broken else "reference" for name in steps
        }
    assert Counter(delegate.begun) == {name: 2 if name == broken else 4 for name in steps}
    assert broken or delegate.begun == steps * 4


@pytest.mark.parametrize("reads", [("t", "a"), ("t", "t")], ids=["one after the other", "side by side"])
def test_queue_runs_its_next_step_while_the_calling_thread_computes(tmp_path, reads):
    builder = Builder(tmp_path / "bundle")
    builder.conv("stem", "stem", "cpu", "x", "t", 4)
    builder.conv("s1.cpu", "s1", "cpu", "t", "c", 4)
    for name, source, target in zip(("s1.gpu", "s2.gpu"), reads, "ab", strict=True):
        builder.conv(name, "s1", "gpu", source, target, 4)
    builder.join("s1.join", "s1", "sum", ["c", "b", "a"], "y")
    path = builder.write("y")
    begun = threading.Event()
    # s1.cpu does not end before s2.gpu has begun
    delegates = {"reference": flaky({"s2.gpu": begun.set, "s1.cpu": lambda: begun.wait(60)}, "reference")}
    with Session(path, {"cpu": f"reference{available_cores()[0]}", "gpu": "reference"}, delegates=delegates) as session:
        for number in range(3):
            begun.clear()
            assert np.allclose(session(X * number), whole(path, X * number), atol=1e-5)


class Listener:
    def __init__(self):
        self.calls = []
        self.heard = threading.Event()

    def overdue(self, thread, call):
        self.calls.append((thread, call))
        self.heard.set()


def test_watchdog_reports_each_overdue_call_once_and_no_call_that_ends_in_time(new_threads):
    strict, patient = Listener(), Listener()
    watch, patient_watch = Watchdog(0.01, strict.overdue), Watchdog(1000.0, patient.overdue)
    for name in ("first", "second"):
        strict.heard.clear()
        call = (name, time.perf_counter_ns())
        watch.running["gpu"] = patient_watch.running["gpu"] = call
        assert strict.heard.wait(60)
        assert strict.calls[-1] == ("gpu", call)
    patient_watch.running["gpu"] = None
    watch.close()
    patient_watch.close()
    assert ([call[0] for _, call in strict.calls], patient.calls, new_threads()) == (["first", "second"], [], set())


def test_other_thread_than_the_main_one_is_interrupted_between_instructions():
    started, rows = threading.Event(), []

    def work():
        try:
            started.set()
            while True:
                pass
        except KeyboardInterrupt:
            rows.append("interrupted")

    thread = threading.Thread(target=work)
    thread.start()
    assert started.wait(60)
    interrupt(thread.ident)
    thread.join(60)
    assert rows == ["interrupted"]


def test_main_thread_is_interrupted_while_it_waits():
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - the interruption may come before the wait
        threading.Timer(0.1, interrupt, (threading.get_ident(),)).start()
        threading.Event().wait(60)


def stuck(*names, first=lambda: None):
    """A delegate whose runs of these subgraphs call `first` and then wait for an event, and this event."""
    free = threading.Event()
    return flaky(dict.fromkeys(names, lambda: (first(), free.wait(120))), "null"), free


@pytest.mark.representatives(1)
@pytest.mark.parametrize(
    "mapping", [{"gpu": "null"}, {"gpu": "cpu", "cpu": f"null{available_cores()[0]}"}], ids=["on a thread", "on the calling thread"]
)
def test_call_beyond_the_time_limit_ends_the_run_and_the_session(bundle_dir, mapping):
    delegate, free = stuck("s1.gpu", "s1.cpu")
    with Session(bundle_dir, mapping, delegates={"null": delegate}, time_limit=1) as session:
        for _ in range(2):
            with pytest.raises(StretchError, match=r"`s1\..pu` did not end within 1 s .* \(delegate `null`\)") as error:
                session(X)
            assert {"--map", "--time-limit"} <= set(re.findall(r"--[\w-]+", error.value.hint))
        with pytest.raises(StretchError, match="did not end"):
            session.time_alone("s1.gpu")
    free.set()


def press():
    """Interrupt the main thread just before it starts to wait, so that the signal wakes no thread."""
    while sys._current_frames()[threading.main_thread().ident].f_code.co_name != "_serve":
        os.sched_yield()
    _thread.interrupt_main()


def test_interrupt_just_before_a_wait_is_not_lost(bundle_dir):
    delegate, free = stuck("s1.gpu", first=press)
    with pytest.raises(KeyboardInterrupt), Session(bundle_dir, {"gpu": "null"}, delegates={"null": delegate}, time_limit=1000) as session:
        session(X)
    assert not free.is_set()
    free.set()


def test_hang_of_one_inference_in_flight_ends_all_of_them_and_refuses_more(bundle_dir):
    delegate, free = stuck("s1.gpu")
    with Session(bundle_dir, {"gpu": "null"}, delegates={"null": delegate}, time_limit=1, in_flight=2) as session:
        futures = [session.submit(X) for _ in range(2)]
        for future in futures:
            with pytest.raises(StretchError, match=r"`s1\.gpu` did not end within 1 s"):
                future.result(60)
        for call in (session.submit, session):
            with pytest.raises(StretchError, match="did not end"):
                call(X)
    free.set()
