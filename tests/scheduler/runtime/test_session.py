"""The session API: runs, several inputs and outputs, inferences in flight, and sessions that switch between plans."""

import _thread
import os
import threading
import time
from concurrent.futures import Future
from dataclasses import replace

import msgspec
import numpy as np
import onnx
import onnxruntime
import pytest

from predictors.errors import StretchError, UnknownNameError, UsageError
from scheduler.adapt.policy import AdaptationRules, Policy
from scheduler.bundle.load import load_bundle
from scheduler.checks.verify import compare_with_reference
from scheduler.cores import available_cores
from scheduler.delegates.base import UnableError
from scheduler.measure.benchmark import Effort, benchmark
from scheduler.placement.place import Placement
from scheduler.runtime.adaptive import AdaptiveSession
from scheduler.runtime.failures import HangError
from scheduler.runtime.record import replay
from scheduler.runtime.session import Session, retry_after_hang
from scheduler.runtime.threads import QueueThreads
from tests.corpus import mutations
from tests.scheduler import bundles
from tests.scheduler.doubles import Gate, Hooked, HookedQueue, flaky, numbers, whole

#: A core that this process may use.
CORE = available_cores()[0]


@pytest.mark.parametrize(
    "mapping",
    [
        *(None, {"gpu": f"cpu{CORE}", "cpu": f"cpu{CORE}"}, {"gpu": "reference"}),
        *({"cpu": "reference", "gpu": "cpu"}, {"cpu": "reference", "gpu": "reference"}),
    ],
)
@pytest.mark.parametrize("batch", [1, 2])
def test_session_agrees_with_the_whole_model(bundles, tmp_path, mapping, batch):
    path = bundles.two_branches(tmp_path / "b", batch=batch)
    x = numbers(shape=(batch, 3, 8, 8))
    with Session(path, mapping) as session:
        assert np.allclose(session(x), whole(path, x), atol=1e-6)


def test_first_processor_does_the_work_of_omitted_ones(bundle_dir, new_threads):
    x = numbers()
    with Session(bundle_dir, processors=["cpu"]) as session:
        assert np.allclose(session(x), whole(bundle_dir, x), atol=1e-6)
        cores = "+".join(map(str, sorted(os.sched_getaffinity(0))))
        assert {span.queue for span in session.trace.spans if span.kind == "subgraph"} == {f"cpu{cores}"}
        assert {thread.name for thread in new_threads()} == {"nn-stretch watch"}


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"mapping": {"gpu": "cpu0"}, "processors": ["cpu"]}, UsageError, "leaves it out"),
        ({"memory_planner": "gready"}, UnknownNameError, "`gready`"),
        ({"record": "nowhere/run.jsonl"}, StretchError, "cannot write the record"),
        *(({"time_limit": limit}, UsageError, "time limit") for limit in (0, -1.0, float("inf"), float("nan"))),
    ],
)
def test_session_with_invalid_options_is_refused_and_leaves_no_thread(bundle_dir, new_threads, options, error, message):
    with pytest.raises(error, match=message):
        Session(bundle_dir, **options)
    assert not new_threads()


def test_result_survives_the_next_run_and_close_leaves_no_thread_and_no_affinity(bundle_dir, new_threads):
    before = os.sched_getaffinity(0)
    with Session(bundle_dir, {"gpu": "reference"}) as session:
        kept = (first := session(numbers(1))).copy()
        session(numbers(2))
        assert np.array_equal(first, kept)
        assert (len(new_threads()), os.sched_getaffinity(0)) == (2, before)  # a worker and the watchdog
    assert not new_threads()
    session.close()


def test_tensors_between_subgraphs_can_be_read(bundle_dir):
    manifest = load_bundle(bundle_dir).manifest
    with Session(bundle_dir) as session:
        tensors = session.tensors(numbers())
        assert np.array_equal(tensors[manifest.output], session(numbers()))
        assert set(tensors) == {tensor.name for tensor in manifest.tensors}
        branches = [tensors[name] for name in manifest.joins[0].inputs]
        assert np.array_equal(tensors[manifest.joins[0].output], np.concatenate(branches, axis=1))


@pytest.mark.parametrize("name", ["stem", "s1.cpu", "s1.gpu", "s2.cpu", "s2.gpu", "head"])
def test_failing_delegate_is_one_error_and_the_session_stays_usable(bundle_dir, name):
    armed = {}
    x = numbers()
    with Session(bundle_dir, delegates={"cpu": flaky(armed)}) as session:
        expected = session(x)
        for _ in range(2):
            armed[name] = RuntimeError("out of memory\nlong story")
            with pytest.raises(StretchError, match=f"subgraph `{name}` failed on processor .* out of memory$") as error:
                session(x)
            assert isinstance(error.value.__cause__, RuntimeError)
            armed.clear()
            assert np.array_equal(session(x), expected)


def test_asynchronous_processor_overlaps_without_a_thread(bundle_dir, new_threads):
    with Session(bundle_dir, {"cpu": "null", "gpu": "null_async"}) as session:
        for _ in range(3):
            session(numbers())
            assert {thread.name for thread in new_threads()} == {"nn-stretch watch"}
            assert session.trace.overlap_ms("cpu", "gpu") > 0


@pytest.mark.parametrize("at", ["enqueue", "wait"])
def test_failing_command_queue_is_one_error(bundle_dir, at):
    def fail(current, model, run, outputs):
        if current == at:
            raise StretchError(f"lost at {at}", "take it elsewhere")

    with Session(bundle_dir, {"gpu": "null_async"}, delegates={"null_async": HookedQueue(fail, "null")}) as session:
        for _ in range(2):
            with pytest.raises(StretchError, match=f"subgraph `s1.gpu` failed on processor `gpu` .* lost at {at}") as error:
                session(numbers())
            assert error.value.hint == "take it elsewhere"


def test_single_subgraph_is_timed_on_its_placement(bundle_dir):
    armed = {}
    with Session(bundle_dir, delegates={"cpu": flaky(armed)}) as session:
        assert min(session.time_alone("s1.gpu"), session.time_alone("s1.cpu")) > 0
        armed["s1.gpu"] = RuntimeError("broken")
        with pytest.raises(StretchError, match="broken"):
            session.time_alone("s1.gpu")
        armed.clear()
        assert np.allclose(session(numbers()), whole(bundle_dir, numbers()), atol=1e-6)


@pytest.mark.parametrize("in_flight", [1, 2, 4])
@pytest.mark.parametrize("mapping", [None, {"gpu": "reference"}, {"cpu": f"cpu{CORE}", "gpu": f"cpu{CORE}"}])
def test_each_future_has_the_output_of_its_input(bundle_dir, mapping, in_flight):
    inputs = [numbers(seed) for seed in range(6)]
    expected = [whole(bundle_dir, x) for x in inputs]
    with Session(bundle_dir, mapping, in_flight=in_flight) as session:
        futures = []
        for x in inputs:
            futures.append(session.submit(x))
            x[:] = 0  # an input may be overwritten as soon as it is submitted
        for future, output in zip(futures, expected, strict=True):
            assert np.allclose(future.result(60), output, atol=1e-6)


def test_an_inference_starts_while_another_waits_for_a_processor(bundle_dir):
    gate, stems = Gate("s1.gpu"), Gate("stem")
    stems.open.set()
    with Session(bundle_dir, {"gpu": "reference"}, delegates={"reference": gate, "cpu": stems}) as session:
        first = session.submit(numbers(1))
        assert gate.reached.acquire(timeout=60)
        second = session.submit(numbers(2))
        for _ in range(2):
            assert stems.reached.acquire(timeout=60)
        assert not first.done()
        gate.open.set()
        assert np.allclose(first.result(60), whole(bundle_dir, numbers(1)), atol=1e-6)
        assert np.allclose(second.result(60), whole(bundle_dir, numbers(2)), atol=1e-6)
        spans = {(lane, span.name): span for lane, trace in enumerate(session.submitted_traces) for span in trace.spans}
        # The second inference's stem ran on the CPU before the first inference's branch on the other processor ended.
        assert spans[1, "stem"].start_ns < spans[0, "s1.gpu"].end_ns


@pytest.mark.parametrize("error", [RuntimeError("lost its device"), KeyboardInterrupt()])
def test_failure_reaches_only_its_own_future(bundle_dir, error):
    gate = Gate("s1.gpu", error)
    gate.open.set()
    with Session(bundle_dir, {"gpu": "reference"}, delegates={"reference": gate}, in_flight=1) as session:
        first = session.submit(numbers(1))
        with pytest.raises(StretchError, match=r"`s1.gpu` failed on processor `gpu`"):
            first.result(60)
        assert np.allclose(session.submit(numbers(2)).result(60), whole(bundle_dir, numbers(2)), atol=1e-6)
        assert np.allclose(session(numbers(3)), whole(bundle_dir, numbers(3)), atol=1e-6)


def test_callback_that_would_wait_for_its_own_thread_is_refused(bundle_dir):
    rows = []
    ran = threading.Event()
    gate = Gate("head")
    with Session(bundle_dir, delegates={"cpu": gate}) as session:

        def start_another(_):
            for call in (session.submit, session.run):
                try:
                    call(numbers())
                except UsageError as error:
                    rows.append(error.message)
            ran.set()

        session.submit(numbers()).add_done_callback(start_another)
        gate.open.set()
        assert ran.wait(60)
    assert rows == ["a callback of a future cannot start another inference"] * 2


def test_close_waits_for_inferences_in_flight_and_leaves_no_thread(bundle_dir, new_threads):
    session = Session(bundle_dir)
    futures = [session.submit(numbers(seed)) for seed in range(3)]
    session.close()
    assert all(future.done() for future in futures)
    assert not new_threads()
    for call in (session.submit, session.run):
        with pytest.raises(StretchError, match="closed"):
            call(numbers())


@pytest.fixture
def path(bundles, tmp_path):
    return bundles.several_ends(tmp_path / "b")


def named_numbers(seed=0):
    return dict(zip(("left", "right"), numbers(seed, (2, 1, 3, 8, 8)), strict=True))


def named_whole(path, x):
    session = onnxruntime.InferenceSession(str(path / "model.onnx"))
    return dict(zip([output.name for output in session.get_outputs()], session.run(None, x), strict=True))


def same(got, expected):
    return got.keys() == expected.keys() and all(np.allclose(got[name], expected[name], atol=1e-5) for name in expected)


@pytest.mark.parametrize("mapping", [None, {"gpu": "reference"}, {"cpu": f"cpu{CORE}", "gpu": f"cpu{CORE}"}])
@pytest.mark.parametrize("reordered", [False, True])
def test_named_outputs_agree_with_the_whole_model_for_any_order_of_tensors_in_a_file(path, mapping, reordered):
    model = onnx.load(path / "m.cpu.onnx")
    for values in (model.graph.input, model.graph.output) if reordered else ():
        values.extend([values.pop(0) for _ in values[1:]])
    onnx.save(model, path / "m.cpu.onnx")
    mutations.hashed(path, "m.cpu.onnx")
    with Session(path, mapping) as session:
        for seed in range(3):
            assert same(session.run(named_numbers(seed)), named_whole(path, named_numbers(seed)))


ONE = numbers()


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ([1.0], "is a list"),
        (numbers(shape=(1, 3, 8, 9)), "has shape"),
        (numbers(shape=(3, 8, 8)), "has shape"),
        (ONE.astype(np.float64), "has type float64"),
        (np.full_like(ONE, np.nan), "NaN or infinity"),
        (np.where(ONE > 2, np.inf, 0).astype(np.float32), "NaN or infinity"),
        ({"left": ONE}, "the input `right` is missing"),
        (named_numbers() | {"middle": np.zeros(1, np.float32)}, "no input `middle`"),
        (named_numbers() | {"right": numbers(shape=(1, 3, 8, 9))}, "the input `right` has shape"),
        (named_numbers() | {"left": np.full_like(ONE, np.nan)}, "the input `left` contains NaN"),
        (ONE, "has 2 inputs, one array was given"),
    ],
)
def test_wrong_input_is_a_usage_error_with_its_name_and_the_session_stays_usable(bundle_dir, path, x, message):
    several = isinstance(x, dict) or x is ONE
    with Session(path if several else bundle_dir) as session:
        for call in (session.run, session.submit, session.tensors):
            with pytest.raises(UsageError, match=message):
                call(x)
        if several:
            assert same(session(named_numbers()), named_whole(path, named_numbers()))
        else:
            assert np.isfinite(session(ONE)).all()
            session(np.full((1, 3, 8, 8), 1e37, np.float32))  # its sum overflows


def test_results_have_the_names_of_the_manifest_in_runs_and_in_flight(path):
    bundle = load_bundle(path)
    manifest = msgspec.structs.replace(bundle.manifest, results=("total", "rest"))
    named = replace(bundle, manifest=manifest)
    expected = named_whole(path, named_numbers())
    with Session(named) as session:
        for got in (session.run(named_numbers()), session.submit(named_numbers()).result(60)):
            assert list(got) == ["total", "rest"]
            for name, result in zip(bundle.manifest.outputs, got, strict=True):
                np.testing.assert_allclose(got[result], expected[name], atol=1e-5)
        compare_with_reference(session, named_numbers())
        benchmark(session, named_numbers(), Effort(1, warmup=0))


def test_jobs_of_a_hanging_thread_go_to_a_new_one_and_it_ends_after_the_hang(new_threads):
    threads, free, begun, done = QueueThreads(), threading.Event(), threading.Event(), threading.Event()
    threads.open("cpu1", ())
    threads.inbox("cpu1").put(lambda: (begun.set(), free.wait(60)))
    threads.inbox("cpu1").put(done.set)
    assert begun.wait(60)
    (hanging,) = new_threads()
    threads.replace_thread("cpu1")
    assert done.wait(60)
    free.set()
    hanging.join(60)
    assert not hanging.is_alive()
    assert threads.close()


def interrupting():
    """A reference delegate, a function that arms an interrupt in one of its subgraphs, and an event that ends this subgraph."""
    armed, free = {}, threading.Event()

    def press():
        armed.clear()
        _thread.interrupt_main()
        assert free.wait(60)

    return flaky(armed, "reference"), lambda: armed.update({"s1.gpu": press}), free


@pytest.mark.parametrize("waiting", [False, True])
def test_run_after_an_interrupted_one_waits_for_its_unfinished_steps_and_is_complete(bundle_dir, waiting):
    delegate, arm, free = interrupting()
    with Session(bundle_dir, {"gpu": "reference"}, delegates={"reference": delegate}) as session:
        for seed in range(3):
            x = numbers(seed)
            arm()
            if not waiting:
                free.set()
            with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - the interrupt may come after the run
                session(x)
                threading.Event().wait(60)
            timer = threading.Timer(0.1, free.set)
            timer.start()
            assert np.allclose(session(x), whole(bundle_dir, x), atol=1e-6)
            assert [span.name for span in session.trace.spans].count("s1.gpu") == 1
            timer.join()
            free.clear()


def test_run_is_refused_while_steps_of_an_interrupted_run_do_not_end(bundle_dir):
    delegate, arm, free = interrupting()
    x = np.zeros((1, 3, 8, 8), np.float32)
    with Session(bundle_dir, {"gpu": "reference"}, delegates={"reference": delegate}, time_limit=1000) as session:
        session(x)
        arm()
        with pytest.raises(KeyboardInterrupt):
            session(x)
        session._executor._limit_s = 0.05
        with pytest.raises(StretchError, match="left behind does not end"):
            session(x)
        free.set()
        session._executor._limit_s = 60.0
        assert np.allclose(session(x), whole(bundle_dir, x), atol=1e-6)


GPU = Placement("gpu", "cpu", (), "gpu", "blocking", True, "")


@pytest.mark.parametrize(("first_error", "error"), [(ValueError("no"), ValueError), (HangError.of("s1.gpu", GPU, 1.0), ZeroDivisionError)])
def test_errors_other_than_a_hang_and_errors_of_the_second_try_are_passed_on(first_error, error):
    first = Future()
    result = retry_after_hang(first, lambda: 1 / 0)
    first.set_exception(first_error)
    with pytest.raises(error):
        result.result(60)


class Losing(HookedQueue):
    """An asynchronous ONNX Runtime that refuses some subgraphs and fails when its device is lost."""

    def __init__(self, refused=(), at="wait"):
        super().__init__(self.check, "cpu", "cpu")
        self.refused, self.at = refused, at
        self.lost = threading.Event()
        self.compiled = []

    def compile(self, model):
        self.compiled.append(model.stem)
        if model.stem in self.refused:
            raise UnableError(f"no kernel computes {model.stem}")
        return super().compile(model)

    def check(self, at, model, run, outputs):
        if self.lost.is_set() and self.at == at:
            for output in outputs:
                output.fill(np.nan)  # half-written
            raise UnableError("the device was lost")
        if at == "wait":
            run()


def right(path, y, seed=0):
    return np.allclose(y, whole(path, numbers(seed)), atol=1e-6)


def session_of(path, delegate, **more):
    return Session(path, {"gpu": "null_async"}, delegates={"null_async": delegate}, **more)


def test_refused_subgraph_is_placed_elsewhere_with_a_warning_and_a_reason(bundle_dir):
    delegate = Losing(refused=("s1.gpu",))
    with pytest.warns(UserWarning, match=r"`s1\.gpu` of the gpu runs on the CPU: no kernel"):
        session = session_of(bundle_dir, delegate)
    with session:
        assert right(bundle_dir, session(numbers()))
        [(name, place)] = session.replaced.items()
        assert (name, place.delegate, place.processor) == ("s1.gpu", "cpu", "gpu")
        assert "no kernel computes s1.gpu" in place.reason
        queues = {span.name: span.queue for span in session.trace.spans}
        assert queues["s1.gpu"] == place.queue != queues["s2.gpu"] == "null_async:gpu"
    # without a fallback delegate
    delegate.falls_back_on = None
    with pytest.raises(StretchError, match=r"no kernel computes s1\.gpu"):
        session_of(bundle_dir, delegate)


@pytest.mark.parametrize(("at", "in_flight"), [("enqueue", None), ("wait", None), ("wait", 3)])
def test_lost_device_loses_no_inference_in_runs_or_in_flight(bundle_dir, tmp_path, at, in_flight):
    delegate = Losing(at=at)
    with session_of(bundle_dir, delegate, record=tmp_path / "run.jsonl", **({"in_flight": in_flight} if in_flight else {})) as session:

        def traced(seeds):
            """Trace of the last inference, after asserting the outputs of all seeds."""
            if in_flight:
                futures = [session.submit(numbers(seed)) for seed in seeds]
                assert all(right(bundle_dir, future.result(60), seed) for seed, future in zip(seeds, futures, strict=True))
                return session.submitted_traces[-1]
            assert all(right(bundle_dir, session(numbers(seed)), seed) for seed in seeds)
            return session.trace

        assert traced([9]).replaced == {}
        delegate.lost.set()
        with pytest.warns(UserWarning, match="runs on the CPU: the device was lost"):
            trace = traced(range(8) if in_flight else [2])
        assert trace.replaced == dict.fromkeys(("s1.gpu", "s2.gpu"), "the null_async delegate cannot run it: the device was lost")
        # with several inferences in flight, an idle queue with equally many cores takes work of another
        allowed = (
            {place.queue for place in session.subgraph_placements.values()} if in_flight else {session.subgraph_placements["s1.gpu"].queue}
        )
        [queue] = {span.queue for span in trace.spans if span.name == "s1.gpu"}
        assert queue in allowed
        traced(range(3))
    assert replay(tmp_path / "run.jsonl").finished == (12 if in_flight else 5)


def test_subgraph_moves_between_runs_and_is_compiled_in_the_open_session(bundle_dir):
    with Session(bundle_dir, {"gpu": "reference"}) as session:
        assert right(bundle_dir, session(numbers()))
        session.replace("s1.gpu", f"cpu{CORE}")
        session.replace("head", f"reference{available_cores()[-1]}")
        assert right(bundle_dir, session(numbers()))
        spans = {span.name: span.queue for span in session.trace.spans}
        assert (spans["s1.gpu"], session.trace.replaced["s1.gpu"]) == (f"cpu{CORE}", f"mapped to cpu{CORE}")
        with pytest.raises(StretchError, match="unknown subgraph"):
            session.replace("s9.gpu", f"cpu{CORE}")


@pytest.mark.slow
def test_policy_repeats_its_decisions_for_recorded_events(bundle_dir):
    """One plan uses both processors, where the GPU's speed changes; the other plan is slower and uses the CPU only."""
    factors, rules = {"gpu": 1, "cpu": 2}, AdaptationRules(contended=3.0, free=2.0, inferences=2, probe_after=3, probe_most=3)
    # a subgraph takes far longer than the delays of a busy machine
    gpu, cpu = (Hooked(lambda model, run, outputs, key=key: (time.sleep(factors[key] * 0.03), run())) for key in factors)
    with (
        Session(bundle_dir, {"gpu": "null"}, delegates={"null": gpu}) as both,
        Session(bundle_dir, {"cpu": "null"}, processors=["cpu"], delegates={"null": cpu}) as cpu_only,
    ):
        session = AdaptiveSession({"both": both, "cpu alone": cpu_only}, rules, quiet=3)
        for factors["gpu"] in (1, 1, 12, 12, 12, 12, 1, 1, 1, 1, 1):
            session(numbers())
    policy, decisions = Policy(list(session.alternatives.values()), rules), []
    state = policy.begin()
    for event in session.events:
        state, decision = policy.after(state, event)
        decisions += [decision] if decision is not None else []
    assert (tuple(decisions), state.current) == (session.decisions, session.current)


def test_single_plan_is_always_run_and_invalid_arguments_are_refused(bundle_dir, tmp_path):
    with Session(bundle_dir) as one, Session(bundles.several_ends(tmp_path / "other")) as two:
        session = AdaptiveSession({"one": one}, quiet=1)
        assert right(bundle_dir, session(numbers()))
        assert session.current == "one"
        for sessions, quiet, message in (
            ({}, 1, "no session"),
            ({"one": one, "two": two}, 1, "`two`.*`one`"),
            ({"one": one}, 0, "usual time"),
        ):
            with pytest.raises(UsageError, match=message):
                AdaptiveSession(sessions, quiet=quiet)
