import warnings
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.delegates.base import Invocation, UnableError
from scheduler.delegates.reference import ReferenceDelegate
from scheduler.runtime.executor import awaited, followers, in_a_row
from scheduler.runtime.plan import PlannedSubgraph, plan_of
from scheduler.runtime.session import Session
from tests import onnx_runtime
from tests.scheduler.bundles import one_after_the_other


def steps(**reads):
    """Subgraphs by name, with the steps that they read; what reads nothing reads the input."""
    return [
        PlannedSubgraph(name, name, name, "p", tuple(f"{each}.y" for each in read.split()) or ("x",), (f"{name}.y",))
        for name, read in reads.items()
    ]


def plan(subgraphs, joins=()):
    return plan_of(["x"], [f"{subgraphs[-1].name}.y"], subgraphs, joins)


def test_what_only_waits_for_the_step_before_on_its_queue_follows_it():
    made = plan(steps(a="", b="a", c="b", d="c"))
    assert followers(made, {"a": "q", "b": "q", "c": "r", "d": "r"}) == {"a": "b", "c": "d"}
    assert in_a_row("a", followers(made, dict.fromkeys("abcd", "q"))) == ("a", "b", "c", "d")


def test_step_that_waits_for_another_queue_does_not_follow():
    made = plan(steps(a="", b="", c="a b"))
    assert followers(made, {"a": "q", "b": "r", "c": "q"}) == {}


def test_what_waits_for_steps_of_long_ago_follows_too():
    made = plan(steps(a="", b="a", c="b", d="a c"))
    assert followers(made, {"a": "r", "b": "q", "c": "q", "d": "q"}) == {"b": "c", "c": "d"}


def test_end_of_a_step_is_news_unless_one_step_alone_reads_it():
    made = plan(steps(a="", b="a", c="a", d="b c", e="d"))
    assert [awaited(made, name) for name in "abcde"] == [True, False, False, False, True]


@st.composite
def plans(draw):
    count = draw(st.integers(1, 8))
    names = [f"s{each}" for each in range(count)]
    reads = {
        name: " ".join(draw(st.lists(st.sampled_from(names[:number]), unique=True, max_size=3))) if number else ""
        for number, name in enumerate(names)
    }
    return plan(steps(**reads)), {name: draw(st.sampled_from("qrs")) for name in names}


@given(plans())
def test_a_queue_that_goes_on_by_itself_does_what_it_would_have_been_told(made):
    """Whatever the other queues have done, when a step ends its follower is ready, and nothing else of its queue is."""
    planned, queues = made
    writers = {tensor: name for name in planned.order for tensor in planned.step(name).outputs}
    direct = {name: {writers[tensor] for tensor in planned.step(name).inputs if tensor in writers} for name in planned.order}
    for name, following in followers(planned, queues).items():
        least = {name}
        while (more := least.union(*(direct[each] for each in least))) != least:
            least = more
        # at least what the step waited for has ended; at most everything that does not wait for what this queue has yet to do
        most = set(least)
        grown = True
        while grown:
            new = {each for each in planned.order if queues[each] != queues[name] and direct[each] <= most} - most
            most |= new
            grown = bool(new)
        assert direct[following] <= least
        for done in (least, most):
            ready = [each for each in planned.order if queues[each] == queues[name] and each not in done and direct[each] <= done]
            assert ready == [following]


X = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)


class Failing(Invocation):
    """Computes, but for the runs in which it raises; notes all that were begun."""

    def __init__(self, inner, name, begun, broken):
        self._inner, self._name, self._begun, self._broken = inner, name, begun, broken

    def run(self):
        self._begun.append(self._name)
        if self._name in self._broken:
            raise UnableError("it cannot any more")
        self._inner.run()


class Noting(ReferenceDelegate):
    """The reference delegate, some of whose subgraphs fail."""

    falls_back_on = "cpu"

    def __init__(self, *broken):
        super().__init__()
        self.begun, self.broken = [], set(broken)

    def compile(self, model):
        compiled = super().compile(model)
        bind = compiled.bind
        compiled.bind = lambda inputs, outputs: Failing(bind(inputs, outputs), model.stem, self.begun, self.broken)
        return compiled


@pytest.fixture
def path(tmp_path):
    return one_after_the_other(tmp_path / "bundle")


def test_steps_that_a_queue_goes_on_with_are_run_once_and_give_the_networks_output(path):
    noting = Noting()
    with Session(path, {"gpu": "reference"}, delegates={"reference": noting}) as session:
        for number in range(5):
            x = X * (number + 1)
            assert np.allclose(session(x), onnx_runtime.output(path / "model.onnx", x), atol=1e-5)
            assert [span.name for span in session.trace.spans] == ["stem", "s1.gpu", "s2.gpu", "s3.gpu", "head"]
    assert noting.begun == ["s1.gpu", "s2.gpu", "s3.gpu"] * 5


@pytest.mark.parametrize("broken", ["s1.gpu", "s2.gpu", "s3.gpu"])
def test_step_that_fails_is_redone_elsewhere_and_what_follows_runs_after_it(path, broken):
    noting = Noting()
    with Session(path, {"gpu": "reference"}, delegates={"reference": noting}) as session:
        session(X)
        noting.broken.add(broken)
        with warnings.catch_warnings(action="ignore"):
            for number in range(3):
                x = X * (number + 1)
                assert np.allclose(session(x), onnx_runtime.output(path / "model.onnx", x), atol=1e-5)
        assert session.places[broken].delegate == "cpu"
    counts = Counter(noting.begun)
    assert counts.pop(broken) == 2
    assert set(counts.values()) == {4}
