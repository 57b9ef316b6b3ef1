import os
from dataclasses import replace

import pytest

from predictors.errors import StretchError
from scheduler.bundle.load import load_bundle
from scheduler.delegates.base import Invocation
from scheduler.delegates.null import NullDelegate
from scheduler.delegates.reference import ReferenceDelegate
from scheduler.placement.mapping import place_processors
from scheduler.placement.place import place_subgraphs
from scheduler.runtime.buffers import Buffers
from scheduler.runtime.code import Code
from scheduler.runtime.executor import Executor
from scheduler.runtime.plan import make_plan


def executor_of(path, delegate, mapping=None, placed=None):
    """An executor all of whose delegates are one."""
    manifest, plan = (bundle := load_bundle(path)).manifest, make_plan(load_bundle(path).manifest)
    places = place_subgraphs(manifest.subgraphs, placed or place_processors(["cpu", "gpu"], mapping))
    code = Code(bundle, {place.delegate: delegate for place in places.values()})
    return Executor(plan, places, Buffers(plan, manifest.tensors), code)


class Noting(NullDelegate):
    """Notes on which cores each subgraph's thread may run."""

    def __init__(self):
        super().__init__()
        self.cores = {}

    def compile(self, model):
        compiled, cores = super().compile(model), self.cores

        class Call(Invocation):
            def run(self):
                cores[model.stem] = os.sched_getaffinity(0)

        compiled.bind = lambda inputs, outputs: Call()
        return compiled


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system cannot pin threads")
def test_thread_that_waits_for_a_processor_is_pinned_to_its_little_core(bundle_dir):
    noting, little = Noting(), max(os.sched_getaffinity(0))
    placed = place_processors(["cpu", "gpu"], {"gpu": "reference"})
    placed["gpu"] = replace(placed["gpu"], waits_on=little)
    made = executor_of(bundle_dir, noting, placed=placed)
    try:
        made.run()
    finally:
        made.close()
    assert noting.cores["s1.gpu"] == noting.cores["s2.gpu"] == {little}
    assert noting.cores["stem"] == {*placed["cpu"].cores}


@pytest.fixture
def executor(bundle_dir):
    made = executor_of(bundle_dir, ReferenceDelegate(), {"cpu": "reference", "gpu": "reference"})
    yield made
    made.close()


def test_trace_has_every_step_once_with_no_step_before_its_inputs(executor):
    executor.buffers.arrays["x"][...] = 1
    trace = executor.run()
    ends = {span.name: span.end_ns for span in trace.spans}
    starts = {span.name: span.start_ns for span in trace.spans}
    assert sorted(ends) == sorted([*executor.plan.subgraphs, *executor.plan.joins])
    for name, subgraph in executor.plan.subgraphs.items():
        writers = [w for w in (*executor.plan.subgraphs.values(), *executor.plan.joins.values()) if set(w.outputs) & set(subgraph.inputs)]
        assert all(ends[writer.name] <= starts[name] for writer in writers)
    assert trace.start_ns <= min(starts.values())
    assert max(ends.values()) <= trace.end_ns


def test_placement_that_promises_a_command_queue_needs_a_delegate_that_has_one(bundle_dir):
    with pytest.raises(StretchError, match="says that it is asynchronous"):
        executor_of(bundle_dir, ReferenceDelegate(), {"gpu": "null_async"})


def test_failing_join_is_one_error_and_the_next_run_is_whole(bundle_dir):
    executor = executor_of(bundle_dir, NullDelegate())

    def broken():
        raise MemoryError("no room")

    kept, executor.buffers.joins["s2.join"] = executor.buffers.joins["s2.join"], broken
    with pytest.raises(StretchError, match=r"join `s2\.join` failed: no room"):
        executor.run()
    executor.buffers.joins["s2.join"] = kept
    assert len(executor.run().spans) == 8
    executor.close()
