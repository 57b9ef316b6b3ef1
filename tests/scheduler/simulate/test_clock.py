"""The simulated clock: single runs, event for event beside an independent simulation, and schedules of jobs."""

import threading
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictors.errors import UsageError
from scheduler.bundle.load import load_bundle
from scheduler.placement.place import Placement, place_subgraphs
from scheduler.runtime.buffers import Buffers
from scheduler.runtime.code import CompiledSubgraphs
from scheduler.runtime.executor import Driver, Executor, Tenant
from scheduler.runtime.machine import CALLING_THREAD, Finish, Machine, Start, StepDone
from scheduler.runtime.plan import make_plan
from scheduler.runtime.threads import QueueThreads
from scheduler.simulate.clock import Clock, TurnTaking
from scheduler.simulate.networks import Network, StepTime
from scheduler.simulate.scene import Arrivals, Load, Scene
from scheduler.simulate.schedule import Job, schedule
from tests.effort import examples
from tests.scheduler.bundles import Builder
from tests.scheduler.doubles import Hooked
from tests.scheduler.runtime.plans import plans
from tests.scheduler.simulate.plans import PROCESSORS, chain, single

ms = st.floats(0.5, 20)
branches = st.dictionaries(st.sampled_from(PROCESSORS), st.tuples(ms, ms, ms), min_size=2)
chains = st.lists(branches, min_size=1, max_size=4).map(chain)


def simulated(network, **scene):
    return Clock(Network("n", *network), Scene(**scene)).run()


#: Roots of primes: no two sums of whole numbers and some of them are alike, so that no two steps end at once.
ROOTS = [0.01 * prime**0.5 for prime in (2, 3, 5, 7, 11, 13, 17, 19, 23)]


@st.composite
def timed_plans(draw):
    """Any plan, with a time for each step."""
    plan, places = draw(plans())
    took = {name: draw(st.integers(1, 20)) + ROOTS[number] for number, name in enumerate(plan.order)}
    times = {name: StepTime(places[name].processor, (("subgraph", took[name]),)) for name in plan.subgraphs}
    times |= {name: StepTime("cpu", (("join", took[name]),)) for name in plan.joins}
    return plan, places, times


@given(timed_plans())
def test_inference_alone_ends_when_the_planners_schedule_does(network):
    plan, places, times = network
    inline = next((place.queue for place in places.values() if place.dispatch == "inline"), CALLING_THREAD)
    steps = [*plan.joins.values(), *plan.subgraphs.values()]  # a queue takes joins first
    writers = {tensor: number for number, step in enumerate(steps) for tensor in step.outputs}
    jobs = []
    for step in steps:
        queue = inline if step.name in plan.joins else places[step.name].queue
        reads = tuple(dict.fromkeys(writers[tensor] for tensor in step.inputs if tensor in writers))
        jobs.append(Job(queue, sum(part for _, part in times[step.name].parts), reads))
    result = simulated(network, traced=1)
    want = schedule(jobs)
    assert result.latencies_ms == (pytest.approx(want.ms),)
    assert {span.name: span.start_ns / 1e6 for span in result.traces[0].spans} == pytest.approx(
        {step.name: start for step, start in zip(steps, want.starts, strict=True)}, abs=1e-5
    )


@pytest.mark.slow
@settings(max_examples=examples(30))
@given(timed_plans(), st.integers(1, 4), st.sampled_from([None, Arrivals("periodic", 9.0), Arrivals("poisson", 9.0)]))
def test_nothing_runs_two_steps_at_once_and_no_work_is_lost(network, in_flight, arrivals):
    plan, _, times = network
    loads = (Load("cpu", 0.5, 3, 40),) if any(time.processor == "cpu" for time in times.values()) else ()
    result = simulated(network, runs=12, in_flight=in_flight, arrivals=arrivals, loads=loads, jitter=0.2, traced=12)
    spans = [span for trace in result.traces for span in trace.spans]
    assert len(result.traces) == 12
    assert all(sorted(span.name for span in trace.spans) == sorted(plan.order) for trace in result.traces)
    for key in ("queue", "processor"):
        # where every queue has a thread, any of them joins, whatever runs on the processor of the join
        current = [span for span in spans if key == "queue" or span.kind == "subgraph"]
        for name in {getattr(span, key) for span in current}:
            mine = sorted((span.start_ns, span.end_ns) for span in current if getattr(span, key) == name)
            assert all(end <= start + 1 for (_, end), (start, _) in pairwise(mine))
    assert result.elapsed_ms == pytest.approx(max(trace.end_ns for trace in result.traces) / 1e6)
    assert result.latencies_ms == pytest.approx([trace.makespan_ms for trace in result.traces], abs=1e-5)
    running = [sum(a.start_ns <= t.start_ns < a.end_ns for a in result.traces) for t in result.traces]
    assert arrivals is not None or max(running) <= in_flight


@pytest.mark.parametrize(
    ("loads", "end"),
    [
        ((Load("gpu", 0.5, 0, 6),), 13.0),
        ((Load("gpu", 0.5, 2, 6),), 12.0),
        ((Load("gpu", 0.5, 2, 100),), 18.0),
        ((Load("gpu", 1.0, 2, 6),), 14.0),
        ((Load("gpu", 0.5, 2, 6), Load("gpu", 0.25, 4, 6)), 12.5),
        ((Load("gpu", 0.5, 10, 60),), 10.0),
    ],
)
def test_load_slows_what_computes_while_it_lasts(loads, end):
    assert simulated(single("gpu", 10.0), loads=loads).latencies_ms == (pytest.approx(end),)


def test_requests_wait_for_a_lane_and_their_waiting_counts():
    result = simulated(single("gpu", 10.0), runs=4, arrivals=Arrivals("periodic", 4.0))
    assert result.latencies_ms == pytest.approx((10, 16, 22, 28))
    assert result.elapsed_ms == pytest.approx(40)
    early = simulated(single("gpu", 10.0), runs=4, arrivals=Arrivals("periodic", 25.0))
    assert early.latencies_ms == pytest.approx((10, 10, 10, 10))
    assert early.elapsed_ms == pytest.approx(85)


def whole(name, processor, ms):
    return Network(name, *single(processor, ms))


def test_rare_urgent_request_waits_for_one_subgraph_and_not_for_a_queue():
    long, urgent = whole("long", "cpu", 5.0), whole("urgent", "cpu", 1.0)
    scene = Scene(runs=40, in_flight=4)
    theirs = Scene(runs=100, arrivals=Arrivals("periodic", 20.0), deadline_ms=8.0)
    workloads = [(urgent, theirs), *((long, replace(scene, runs=1000)) for _ in range(3))]
    turns = Clock(long, scene, workloads, sharing=TurnTaking()).run().clients[1]
    lined = Clock(long, scene, workloads).run().clients[1]
    assert max(turns.latencies_ms) <= 6.0 + 1e-9
    assert max(lined.latencies_ms) > 15


def test_weights_divide_a_processor():
    current, other = whole("a", "cpu", 1.0), whole("b", "cpu", 1.0)
    ran = Clock(current, Scene(runs=300, in_flight=2), [(other, Scene(runs=10_000, in_flight=2))], sharing=TurnTaking((3.0,))).run()
    assert len(ran.clients[1].latencies_ms) == pytest.approx(100, abs=3)


def test_what_makes_no_sense_is_refused():
    current = whole("a", "cpu", 1.0)
    with pytest.raises(UsageError, match="do not take turns"):
        Clock((current, whole("b", "cpu", 1.0)), Scene(), sharing=TurnTaking())
    with pytest.raises(UsageError, match="weight"):
        Clock(current, Scene(), sharing=TurnTaking((-1.0,)))
    with pytest.raises(UsageError, match="patience"):
        Clock(current, Scene(), sharing=TurnTaking(patience_ms=0.0))
    for options in ({"deadline_ms": 0.0}, {"deadline_ms": inf}, {"priority": 1000}):
        with pytest.raises(UsageError):
            Scene(**options)


#: Seconds after which a test gives up; nothing depends on how long anything takes.
PATIENCE = 60.0


def conducted(conductor, user):
    """`null`, whose subgraphs end when the conductor says so."""
    return Hooked(lambda model, run, outputs: conductor.hold((user, model.stem)), "null")


def write(folder, segments):
    """A bundle of these segments."""
    builder, arriving = Builder(folder), "x"
    for number, branches in enumerate(segments):
        for processor in branches:
            builder.conv(f"s{number}.{processor}", f"s{number}", processor, arriving, f"s{number}.{processor}.y", 4)
        arriving = f"s{number}.{branches[0]}.y"
        if len(branches) > 1:
            builder.join(f"s{number}.join", f"s{number}", "sum", [f"s{number}.{processor}.y" for processor in branches], f"y{number}")
            arriving = f"y{number}"
    return load_bundle(builder.write(arriving))


class Conducted(Driver):
    """Has steps of all clients end in the order of their times."""

    def __init__(self, times):
        self.times, self.clock = times, 0.0
        self.ends, self.held = {}, {}
        self.joining = self.finished = 0
        super().__init__(Machine({}), QueueThreads(), threading.RLock(), now=lambda: self.clock)
        self.changed = threading.Condition(self.lock)

    def tell(self, event, key=None):
        end = super().tell(event, key)
        event, answer = self.events[-1]
        self.joining -= isinstance(event, StepDone) and (event.client, event.step) not in self.times
        for instruction in answer:
            if isinstance(instruction, Finish):
                self.finished += 1
            elif isinstance(instruction, Start):
                key = (instruction.client, instruction.step)
                if key in self.times:
                    self.ends[key] = self.clock + self.times[key]
                else:
                    self.joining += 1
        self.changed.notify_all()
        return end

    def hold(self, key):
        """A subgraph waits here for its end."""
        released = threading.Event()
        with self.changed:
            self.held[key] = released
            self.changed.notify_all()
        assert released.wait(PATIENCE)

    def conduct(self, inferences):
        """Release what ends next, again and again."""
        while True:
            with self.changed:
                assert self.changed.wait_for(lambda: not self.joining and set(self.ends) == set(self.held), PATIENCE)
                if self.finished == inferences:
                    return
                key = min(self.ends, key=self.ends.__getitem__)
                self.clock = self.ends.pop(key)
                self.held.pop(key).set()
                seen = len(self.events)
                assert self.changed.wait_for(lambda answer=seen: len(self.events) > answer, PATIENCE)


@st.composite
def both(draw):
    """Segments of two networks on processors that change, and a time for every subgraph, no two of them alike."""
    segments = [
        draw(st.lists(st.lists(st.sampled_from(PROCESSORS), min_size=1, max_size=3, unique=True), min_size=1, max_size=3)) for _ in "01"
    ]
    numbers = iter(draw(st.permutations(range(len(ROOTS)))) * 3)
    times = {
        (user, f"s{number}.{name}"): draw(st.integers(1, 20)) + ROOTS[next(numbers)]
        for user, segment in zip("01", segments, strict=True)
        for number, branches in enumerate(segment)
        for name in branches
    }
    return segments, times


@pytest.mark.slow
@settings(max_examples=examples(20))
@given(
    both(), st.integers(1, 2), st.tuples(*(st.sampled_from([None, 125, 250]),) * 2), st.tuples(*(st.integers(-1, 1),) * 2), st.booleans()
)
def test_threads_and_simulation_tell_the_same_and_are_answered_the_same(world, lanes, deadlines, priorities, heavier):
    segments, times = world
    weights = (2.0, 1.0) if heavier else (1.0, 1.0)
    with TemporaryDirectory() as folder:
        shared = Conducted(times)
        networks, executors = [], []
        for user, segment, weight in zip("01", segments, weights, strict=True):
            bundle = write(Path(folder) / user, segment)
            plan = make_plan(bundle.manifest)
            named = {name: Placement(name, "null", (), name, "blocking", False, "") for name in PROCESSORS}
            places = place_subgraphs(bundle.manifest.subgraphs, named)
            steps = {name: StepTime(places[name].processor, (("subgraph", times[user, name]),)) for name in plan.subgraphs}
            networks.append(Network(user, plan, places, steps | {name: StepTime("cpu", (("join", 0.0),)) for name in plan.joins}))
            code = CompiledSubgraphs(bundle, {"null": conducted(shared, user)})
            buffers = partial(Buffers, plan, bundle.manifest.tensors)
            executors.append(Executor(plan, places, buffers, code, in_flight=lanes, tenant=Tenant(shared, user, weight)))
            executors[-1].ready()
        try:
            for executor, deadline, priority in zip(executors, deadlines, priorities, strict=True):
                for _ in range(lanes):
                    until = {} if deadline is None else {"deadline_s": deadline / 1e3}
                    executor.submit({"x": np.zeros((1, 3, 8, 8), np.float32)}, priority=priority, **until)
            shared.conduct(2 * lanes)
            events = list(shared.events)
        finally:
            for executor in executors:
                executor.close(wait=False)
            shared.threads.close()
    scenes = [
        Scene(runs=lanes, in_flight=lanes, deadline_ms=deadline, priority=priority)
        for deadline, priority in zip(deadlines, priorities, strict=True)
    ]
    clock = Clock(networks[0], scenes[0], [(networks[1], scenes[1])], sharing=TurnTaking(weights))
    clock.run(everyone=True)
    assert [(event, list(answer)) for event, answer in clock.shared.events] == [(event, list(answer)) for event, answer in events]


times = st.integers(1, 10_000).map(lambda n: n / 7)


@st.composite
def some_jobs(draw):
    result = []
    for number in range(draw(st.integers(1, 9))):
        reads = draw(st.sets(st.integers(0, number - 1), max_size=3)) if number else set()
        result.append(Job(draw(st.sampled_from(["cpu", "gpu", "dsp"])), draw(times), tuple(sorted(reads))))
    return result


def test_processor_does_not_wait_for_an_earlier_job_while_a_later_one_can_start():
    scheduled = schedule([Job("cpu", 5.0), Job("gpu", 1.0, (0,)), Job("gpu", 2.0), Job("cpu", 1.0, (1, 2))])
    assert scheduled.starts == (0.0, 5.0, 0.0, 6.0)
    assert scheduled.ends == (5.0, 6.0, 2.0, 7.0)
    assert scheduled.waits == ((), (0, 2), (), (1, 2, 0))
    assert scheduled.ms == 7.0


def test_jobs_in_a_circle_are_refused():
    with pytest.raises(ValueError, match="circle"):
        schedule([Job("cpu", 1.0, (1,)), Job("cpu", 1.0, (0,))])


@given(some_jobs())
def test_job_starts_when_the_last_that_it_waits_for_has_ended(jobs):
    scheduled = schedule(jobs)
    for number, job in enumerate(jobs):
        assert scheduled.starts[number] == max((scheduled.ends[wait] for wait in scheduled.waits[number]), default=0.0)
        assert set(job.reads) <= set(scheduled.waits[number])
        assert scheduled.ends[number] == scheduled.starts[number] + job.ms
