import threading

import numpy as np
import pytest

from predictors.errors import StretchError, UsageError
from scheduler.cores import available_cores
from scheduler.delegates import Delegate, get_delegate
from scheduler.delegates.base import Compiled, Invocation
from scheduler.runtime.session import Session
from tests import onnx_runtime


def numbers(seed=0, shape=(1, 3, 8, 8)):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


#: A core that this process may use.
CORE = available_cores()[0]


def whole(path, x):
    return onnx_runtime.output(path / "model.onnx", x)


def threads():
    return [t for t in threading.enumerate() if t.name.startswith("nn-stretch")]


@pytest.mark.parametrize("in_flight", [1, 2, 4])
@pytest.mark.parametrize("mapping", [None, {"gpu": "reference"}, {"cpu": f"cpu{CORE}", "gpu": f"cpu{CORE}"}])
def test_each_future_holds_the_output_of_its_own_input(bundle_dir, mapping, in_flight):
    expected = [whole(bundle_dir, numbers(seed)) for seed in range(6)]
    with Session(bundle_dir, mapping, in_flight=in_flight) as session:
        futures = [session.submit(numbers(seed)) for seed in range(6)]
        for future, output in zip(futures, expected, strict=True):
            assert np.allclose(future.result(60), output, atol=1e-6)


def test_input_may_be_overwritten_as_soon_as_it_is_submitted(bundle_dir):
    x = numbers(1)
    expected = whole(bundle_dir, x)
    with Session(bundle_dir) as session:
        future = session.submit(x)
        x[:] = 0
        assert np.allclose(future.result(60), expected, atol=1e-6)


class Gate(Delegate):
    """Runs on ONNX Runtime; one subgraph waits until it is let through, or fails."""

    summary = "waits for the test"

    def __init__(self, stem, error=None):
        self.stem, self.error = stem, error
        self.reached, self.open = threading.Semaphore(0), threading.Event()

    def compile(self, model):
        inner, outer = get_delegate("cpu")().compile(model), self

        class Call(Invocation):
            def __init__(self, call):
                self.call = call

            def run(self):
                if model.stem == outer.stem:
                    outer.reached.release()
                    assert outer.open.wait(60)
                    if outer.error is not None:
                        error, outer.error = outer.error, None
                        raise error
                self.call.run()

        class Wrapped(Compiled):
            def bind(self, inputs, outputs):
                return Call(inner.bind(inputs, outputs))

        return Wrapped(inner.inputs, inner.outputs)


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
        # The second one's stem ran on the CPU before the first one's branch on the other processor ended.
        assert spans[1, "stem"].start_ns < spans[0, "s1.gpu"].end_ns


@pytest.mark.parametrize("error", [RuntimeError("lost its device"), KeyboardInterrupt()])
def test_failure_reaches_its_own_future_alone(bundle_dir, error):
    gate = Gate("s1.gpu", error)
    gate.open.set()
    with Session(bundle_dir, {"gpu": "reference"}, delegates={"reference": gate}, in_flight=1) as session:
        first = session.submit(numbers(1))
        with pytest.raises(StretchError, match=r"`s1.gpu` failed on processor `gpu`"):
            first.result(60)
        assert np.allclose(session.submit(numbers(2)).result(60), whole(bundle_dir, numbers(2)), atol=1e-6)
        assert np.allclose(session(numbers(3)), whole(bundle_dir, numbers(3)), atol=1e-6)


def test_callback_that_would_wait_for_its_own_thread_is_refused(bundle_dir):
    told = []
    ran = threading.Event()
    gate = Gate("head")
    with Session(bundle_dir, delegates={"cpu": gate}) as session:

        def again(_):
            for call in (session.submit, session.run):
                try:
                    call(numbers())
                except UsageError as error:
                    told.append(error.message)
            ran.set()

        session.submit(numbers()).add_done_callback(again)
        gate.open.set()
        assert ran.wait(60)
    assert told == ["a callback of a future cannot start another inference"] * 2


def test_close_waits_for_what_is_in_flight_and_leaves_no_thread(bundle_dir):
    session = Session(bundle_dir)
    futures = [session.submit(numbers(seed)) for seed in range(3)]
    session.close()
    assert all(future.done() for future in futures)
    assert threads() == []
    with pytest.raises(StretchError, match="closed"):
        session.submit(numbers())


@pytest.mark.parametrize("x", [[1.0], numbers(shape=(1, 3, 8, 9)), np.full((1, 3, 8, 8), np.nan, np.float32)])
def test_wrong_input_is_refused_before_it_takes_a_lane(bundle_dir, x):
    with Session(bundle_dir, in_flight=1) as session:
        for _ in range(3):
            with pytest.raises(UsageError):
                session.submit(x)
        session.submit(numbers()).result(60)
