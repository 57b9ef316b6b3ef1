import gc
import os
import signal
import subprocess
import sys
import threading

import msgspec
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictors.errors import MissingBackendError, StretchError, UnknownNameError, UsageError
from scheduler.bundle.load import load_bundle
from scheduler.checks.verify import random_input
from scheduler.cores import available_cores
from scheduler.delegates import Delegate, delegates
from scheduler.delegates.base import Compiled, Invocation
from scheduler.delegates.null import AsyncNullDelegate, NullDelegate
from scheduler.runtime.session import Session
from tests import onnx_runtime
from tests.effort import examples


def whole(path, x):
    return onnx_runtime.output(path / "model.onnx", x)


def numbers(shape=(1, 3, 8, 8), seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def threads():
    return [t for t in threading.enumerate() if t.name.startswith("nn-stretch")]


def workers():
    """Threads that run subgraphs."""
    return [t for t in threads() if t.name != "nn-stretch watch"]


#: A core that this process may use.
CORE = available_cores()[0]
MAPPINGS = [
    None,
    {"gpu": f"cpu{CORE}", "cpu": f"cpu{CORE}"},
    {"gpu": "reference"},
    {"cpu": "reference", "gpu": "cpu"},
    {"cpu": "reference", "gpu": "reference"},
]


@pytest.mark.parametrize("mapping", MAPPINGS)
@pytest.mark.parametrize("batch", [1, 2])
def test_subgraphs_compute_what_the_whole_model_computes(bundles, tmp_path, mapping, batch):
    path = bundles.two_branches(tmp_path / "b", batch=batch)
    x = numbers((batch, 3, 8, 8))
    with Session(path, mapping) as session:
        assert np.allclose(session(x), whole(path, x), atol=1e-6)


@pytest.mark.parametrize("processors", [("cpu", "gpu", "dsp"), ("gpu", "dsp"), ("cpu",)])
def test_any_set_of_processors_runs_here(bundles, tmp_path, processors):
    path = bundles.two_branches(tmp_path / "b", processors=processors) if len(processors) > 1 else single(bundles, tmp_path / "b")
    x = numbers()
    with Session(path) as session:
        assert np.allclose(session(x), whole(path, x), atol=1e-6)


def single(bundles, path):
    b = bundles.Builder(path)
    b.conv("stem", "stem", "cpu", "x", "t", 4)
    b.head("head", "head", "cpu", "t", "y", 3)
    return b.write("y")


def test_processors_left_out_hand_their_work_to_the_first(bundle_dir):
    x = numbers()
    with Session(bundle_dir, processors=["cpu"]) as session:
        assert np.allclose(session(x), whole(bundle_dir, x), atol=1e-6)
        assert {span.queue for span in session.trace.spans if span.kind == "subgraph"} == {f"cpu{CORE}"} or len(
            os.sched_getaffinity(0)
        ) == 1
        assert workers() == []


def test_processor_cannot_be_mapped_and_left_out(bundle_dir):
    with pytest.raises(UsageError, match="leaves it out"):
        Session(bundle_dir, {"gpu": "cpu0"}, processors=["cpu"])


@pytest.mark.slow
@settings(max_examples=examples(10))
@given(st.lists(st.integers(0, 5), min_size=1, max_size=6))
def test_each_run_depends_on_its_own_input_alone(bundle_once, seeds):
    with Session(bundle_once) as session:
        for seed in seeds:
            assert np.allclose(session(numbers(seed=seed)), whole(bundle_once, numbers(seed=seed)), atol=1e-6)


@pytest.fixture(scope="module")
def bundle_once(bundles, tmp_path_factory):
    return bundles.two_branches(tmp_path_factory.mktemp("b"))


def test_result_is_not_overwritten_by_the_next_run(bundle_dir):
    with Session(bundle_dir) as session:
        first = session(numbers(seed=1))
        kept = first.copy()
        session(numbers(seed=2))
        assert np.array_equal(first, kept)


def test_concurrent_callers_each_get_their_own_result(bundle_dir):
    expected = {seed: whole(bundle_dir, numbers(seed=seed)) for seed in range(4)}
    wrong = []
    with Session(bundle_dir) as session:

        def call(seed):
            wrong.extend(not np.allclose(session(numbers(seed=seed)), expected[seed], atol=1e-6) for _ in range(20))

        callers = [threading.Thread(target=call, args=(seed,)) for seed in expected]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    assert wrong == [False] * 80


def test_close_leaves_no_thread_and_no_affinity_behind(bundle_dir):
    before = os.sched_getaffinity(0)
    with Session(bundle_dir, {"gpu": "reference"}) as session:
        session(numbers())
        assert len(workers()) == 1
        assert os.sched_getaffinity(0) == before
    assert threads() == []
    session.close()


@pytest.mark.slow
def test_session_that_was_never_closed_ends_its_threads_with_it(bundle_dir):
    session = Session(bundle_dir, {"gpu": "reference"})
    session(numbers())
    del session
    gc.collect()
    assert threads() == []


def test_closed_session_says_so(bundle_dir):
    session = Session(bundle_dir)
    session.close()
    with pytest.raises(StretchError, match="closed"):
        session(numbers())


def test_tensors_that_cross_subgraphs_can_be_looked_at(bundle_dir):
    manifest = load_bundle(bundle_dir).manifest
    with Session(bundle_dir) as session:
        tensors = session.tensors(numbers())
        assert np.array_equal(tensors[manifest.output], session(numbers()))
        assert set(tensors) == {tensor.name for tensor in manifest.tensors}
        branches = [tensors[name] for name in manifest.joins[0].inputs]
        assert np.array_equal(tensors[manifest.joins[0].output], np.concatenate(branches, axis=1))


def test_a_run_is_needed_before_there_is_a_trace(bundle_dir):
    with Session(bundle_dir) as session, pytest.raises(StretchError, match="not run yet"):
        session.trace  # noqa: B018 - reading it is what raises


@pytest.mark.parametrize(
    ("x", "told"),
    [
        ([1.0], "is a list"),
        (numbers((1, 3, 8, 9)), "has shape"),
        (numbers((3, 8, 8)), "has shape"),
        (numbers().astype(np.float64), "has type float64"),
        (np.full((1, 3, 8, 8), np.nan, np.float32), "NaN or infinity"),
        (np.where(numbers() > 2, np.inf, 0).astype(np.float32), "NaN or infinity"),
    ],
)
def test_wrong_input_is_a_usage_error_and_the_session_goes_on(bundle_dir, x, told):
    with Session(bundle_dir) as session:
        with pytest.raises(UsageError, match=told):
            session(x)
        assert np.isfinite(session(numbers())).all()


def test_large_finite_input_whose_sum_overflows_is_accepted(bundle_dir):
    with Session(bundle_dir) as session:
        session(np.full((1, 3, 8, 8), 1e37, np.float32))


def test_input_that_is_not_contiguous_is_accepted(bundle_dir):
    x = numbers((1, 8, 8, 3)).transpose(0, 3, 1, 2)
    with Session(bundle_dir) as session:
        assert np.allclose(session(x), whole(bundle_dir, np.ascontiguousarray(x)), atol=1e-6)


class Flaky(Delegate):
    """Fails, or blocks until it is told to go on, whenever its file's stem is armed."""

    summary = "fails on demand"

    def __init__(self, armed):
        self.armed = armed

    def compile(self, model):
        inner = delegates.get("cpu")().compile(model)
        outer = self

        class Call(Invocation):
            def __init__(self, call):
                self.call = call

            def run(self):
                if model.stem in outer.armed:
                    raise outer.armed[model.stem]
                self.call.run()

        class Wrapped(Compiled):
            def bind(self, inputs, outputs):
                return Call(inner.bind(inputs, outputs))

        return Wrapped(inner.inputs, inner.outputs)


@pytest.mark.parametrize("where", ["stem", "s1.cpu", "s1.gpu", "s2.cpu", "s2.gpu", "head"])
def test_failing_delegate_is_one_error_and_the_session_stays_usable(bundle_dir, where):
    armed = {}
    x = numbers()
    with Session(bundle_dir, delegates={"cpu": Flaky(armed)}) as session:
        expected = session(x)
        for _ in range(2):
            armed[where] = RuntimeError("out of memory\nlong story")
            with pytest.raises(StretchError, match=f"subgraph `{where}` failed on processor .* out of memory$") as error:
                session(x)
            assert isinstance(error.value.__cause__, RuntimeError)
            armed.clear()
            assert np.array_equal(session(x), expected)


def test_several_failures_at_once_are_one_error(bundle_dir):
    armed = {"s1.cpu": ValueError("one"), "s1.gpu": ValueError("two")}
    with Session(bundle_dir, delegates={"cpu": Flaky(armed)}) as session:
        with pytest.raises(StretchError, match=r"one|two"):
            session(numbers())
        armed.clear()
        assert np.isfinite(session(numbers())).all()


def test_two_branches_overlap_in_time_on_two_processors(bundle_dir):
    cost = NullDelegate({"s1.cpu": 0.05, "s1.gpu": 0.05, "s2.cpu": 0.05, "s2.gpu": 0.05})
    with Session(bundle_dir, {"cpu": "null", "gpu": "null"}, delegates={"null": cost}) as session:
        session(numbers())
        assert session.trace.overlap_ms("cpu", "gpu") > 0
        assert not session.computes


def test_asynchronous_processor_overlaps_without_a_thread(bundle_dir):
    cost = AsyncNullDelegate({"s1.gpu": 0.05, "s2.gpu": 0.05})
    inline = NullDelegate({"s1.cpu": 0.05, "s2.cpu": 0.05})
    with Session(bundle_dir, {"cpu": "null", "gpu": "null_async"}, delegates={"null": inline, "null_async": cost}) as session:
        session(numbers())
        assert workers() == []
        assert session.trace.overlap_ms("cpu", "gpu") > 0


class FailingQueue(AsyncNullDelegate):
    """A command queue that refuses, or loses, what is put into it."""

    def __init__(self, at):
        super().__init__()
        self.at = at

    def compile(self, model):
        compiled, at = super().compile(model), self.at
        bind = compiled.bind

        def failing(inputs, outputs):
            call = bind(inputs, outputs)

            def fail():
                raise RuntimeError(f"lost at {at}")

            setattr(call, at, fail)
            return call

        compiled.bind = failing
        return compiled


@pytest.mark.parametrize("at", ["enqueue", "wait"])
def test_failing_command_queue_is_one_error(bundle_dir, at):
    with Session(bundle_dir, {"gpu": "null_async"}, delegates={"null_async": FailingQueue(at)}) as session:
        for _ in range(2):
            with pytest.raises(StretchError, match=f"subgraph `s1.gpu` failed on processor `gpu` .* lost at {at}"):
                session(numbers())


def test_subgraph_alone_runs_where_it_is_placed(bundle_dir):
    armed = {}
    with Session(bundle_dir, delegates={"cpu": Flaky(armed)}) as session:
        assert session.time_alone("s1.gpu") > 0
        assert session.time_alone("s1.cpu") > 0
        armed["s1.gpu"] = RuntimeError("broken")
        with pytest.raises(StretchError, match="broken"):
            session.time_alone("s1.gpu")
        armed.clear()
        assert np.allclose(session(numbers()), whole(bundle_dir, numbers()), atol=1e-6)


def test_file_that_does_not_fit_its_tensors_is_named(bundles, bundle_dir):
    def swap(manifest):
        a, b = manifest["subgraphs"][1], manifest["subgraphs"][2]
        a["file"], b["file"] = b["file"], a["file"]

    bundles.edit(bundle_dir, swap)
    with pytest.raises(StretchError, match=r"onnx does not fit the bundle: its output is `s1\."):
        Session(bundle_dir)
    assert threads() == []


@pytest.mark.slow
def test_missing_onnx_runtime_is_a_missing_backend_with_the_install_line(bundle_dir, tmp_path):
    code = (
        "import sys; sys.modules['onnxruntime'] = None\n"
        "from scheduler.runtime.session import Session\n"
        "from predictors.errors import MissingBackendError\n"
        "try:\n    Session(sys.argv[1])\n"
        "except MissingBackendError as error:\n    print(error.exit_code, error.message, error.hint)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(bundle_dir)], capture_output=True, text=True, check=True, cwd=os.getcwd())
    assert done.stdout.startswith("5 ")
    assert "pip install onnxruntime" in done.stdout
    assert issubclass(MissingBackendError, StretchError)


@pytest.mark.slow
def test_interrupt_in_a_run_leaves_the_session_usable(bundle_dir):
    slow = NullDelegate({"s1.gpu": 0.3})
    x = numbers()
    with Session(bundle_dir, {"gpu": "null"}, delegates={"null": slow}) as session:
        timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            session(x)
        timer.join()
        for _ in range(3):
            session(x)
            assert [s.name for s in session.trace.spans if s.kind == "subgraph"].count("s1.gpu") == 1
    assert threads() == []


def test_weights_beside_a_file_are_found_though_the_folder_is_replaced(bundles, bundle_dir, tmp_path):
    expected = bundles.two_branches(tmp_path / "same")
    model = onnx.load(bundle_dir / "stem.onnx")
    onnx.save_model(model, str(bundle_dir / "stem.onnx"), save_as_external_data=True, location="stem.data", size_threshold=0)
    for name in ("stem.onnx", "stem.data"):
        entry = msgspec.to_builtins(bundles.file_entry(bundle_dir / name))
        bundles.edit(bundle_dir, lambda m, name=name, entry=entry: m["files"].update({name: entry}))
    bundle = load_bundle(bundle_dir, check_hashes=True)
    x = random_input(bundle)
    bundle_dir.rename(tmp_path / "gone")
    with Session(bundle) as session, Session(expected) as other:
        np.testing.assert_array_equal(session(x), other(x))


@pytest.mark.parametrize("planner", ["naive", "greedy", "flow", "offset"])
def test_every_memory_planner_gives_the_same_results(bundle_dir, planner):
    with Session(bundle_dir, memory_planner=planner, in_flight=2) as session:
        for seed in range(2):
            assert np.allclose(session(numbers(seed=seed)), whole(bundle_dir, numbers(seed=seed)), atol=1e-6)
        futures = [session.submit(numbers(seed=seed)) for seed in range(4)]
        assert all(np.allclose(f.result(60), whole(bundle_dir, numbers(seed=seed)), atol=1e-6) for seed, f in enumerate(futures))


def test_memory_planner_decides_how_much_memory_buffers_take(bundle_dir):
    with Session(bundle_dir, memory_planner="naive") as alone, Session(bundle_dir) as shared:
        assert shared.buffer_bytes < alone.buffer_bytes


def test_unknown_memory_planner_is_named(bundle_dir):
    with pytest.raises(UnknownNameError, match="memory planner `gready`"):
        Session(bundle_dir, memory_planner="gready")
    assert threads() == []
