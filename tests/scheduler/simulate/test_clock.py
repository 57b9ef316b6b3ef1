import re
import threading
from dataclasses import replace
from functools import partial
from itertools import islice, pairwise, permutations
from math import exp, inf, prod
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictors.devices import load_device
from predictors.errors import StretchError, UsageError
from predictors.predictor import LatencyPredictor
from predictors.side_by_side import ProcessorWork, Shares, contention_factors, end_times
from predictors.thermal import Thermal, Throttle
from scheduler.bundle.load import load_bundle
from scheduler.formats.onnx import open_onnx
from scheduler.placement.place import Placement, place_subgraphs
from scheduler.runtime.buffers import Buffers
from scheduler.runtime.code import CompiledSubgraphs
from scheduler.runtime.executor import Driver, Executor, Tenant
from scheduler.runtime.machine import CALLING_THREAD, Finish, Machine, Start, StepDone
from scheduler.runtime.plan import make_plan
from scheduler.runtime.threads import QueueThreads
from scheduler.simulate import networks as nets
from scheduler.simulate.answer import prepare
from scheduler.simulate.clock import Clock, TurnTaking
from scheduler.simulate.scene import Arrivals, FreeShares, Heat, Load, Power, Scene, parse_arrivals, parse_loads, powers, thermal_of
from scheduler.simulate.schedule import Job, longest_path, schedule
from tests.effort import examples
from tests.predictors.specified import contending, specified
from tests.scheduler.bundles import Builder
from tests.scheduler.doubles import Hooked
from tests.scheduler.runtime.plans import PROCESSORS, chain, plans, single

ms = st.floats(0.5, 20)
branches = st.dictionaries(st.sampled_from(PROCESSORS), st.tuples(ms, ms, ms), min_size=2)
chains = st.lists(branches, min_size=1, max_size=4).map(chain)


def simulated(network, **scene):
    return Clock(nets.Network("n", *network), Scene(**scene)).run()


#: Scaled roots of primes: sums of integers and different roots are never equal, so that no two steps end at one time.
ROOTS = [0.01 * prime**0.5 for prime in (2, 3, 5, 7, 11, 13, 17, 19, 23)]


@st.composite
def timed_plans(draw):
    plan, places = draw(plans())
    durations = {name: draw(st.integers(1, 20)) + ROOTS[number] for number, name in enumerate(plan.order)}
    times = {name: nets.StepTime(places[name].processor, (("subgraph", durations[name]),)) for name in plan.subgraphs}
    times |= {name: nets.StepTime("cpu", (("join", durations[name]),)) for name in plan.joins}
    return plan, places, times


@given(timed_plans())
def test_single_inference_ends_with_the_planners_schedule(network):
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
    expected = schedule(jobs)
    assert result.latencies_ms == (pytest.approx(expected.ms),)
    assert {span.name: span.start_ns / 1e6 for span in result.traces[0].spans} == pytest.approx(
        {step.name: start for step, start in zip(steps, expected.starts, strict=True)}, abs=1e-5
    )


@pytest.mark.slow
@settings(max_examples=examples(30))
@given(timed_plans(), st.integers(1, 4), st.sampled_from([None, Arrivals("periodic", 9.0), Arrivals("poisson", 9.0)]))
def test_queues_and_processors_run_one_step_at_a_time_and_no_work_is_lost(network, in_flight, arrivals):
    plan, _, times = network
    loads = (Load("cpu", 0.5, 3, 40),) if any(time.processor == "cpu" for time in times.values()) else ()
    result = simulated(network, runs=12, in_flight=in_flight, arrivals=arrivals, loads=loads, jitter=0.2, traced=12)
    spans = [span for trace in result.traces for span in trace.spans]
    assert len(result.traces) == 12
    assert all(sorted(span.name for span in trace.spans) == sorted(plan.order) for trace in result.traces)
    for key in ("queue", "processor"):
        # if every queue has a thread, any queue may run a join, also while a subgraph runs on the join's processor
        current = [span for span in spans if key == "queue" or span.kind == "subgraph"]
        for name in {getattr(span, key) for span in current}:
            intervals = sorted((span.start_ns, span.end_ns) for span in current if getattr(span, key) == name)
            assert all(end <= start + 1 for (_, end), (start, _) in pairwise(intervals))
    assert result.elapsed_ms == pytest.approx(max(trace.end_ns for trace in result.traces) / 1e6)
    assert result.latencies_ms == pytest.approx([trace.makespan_ms for trace in result.traces], abs=1e-5)
    running = [sum(a.start_ns <= t.start_ns < a.end_ns for a in result.traces) for t in result.traces]
    assert arrivals is not None or max(running) <= in_flight


WEIGHTS = st.sampled_from([(2.0, 1.0), (1.0, 1.0)])


@pytest.mark.slow
@given(timed_plans(), timed_plans(), st.integers(1, 3), WEIGHTS)
def test_two_clients_that_take_turns_run_every_step_after_its_inputs_one_at_a_time(one, other, lanes, weights):
    scene = Scene(runs=6, in_flight=lanes, traced=6)
    networks = [nets.Network(name, *network) for name, network in (("one", one), ("other", other))]
    result = Clock(networks[0], scene, [(networks[1], scene)], sharing=TurnTaking(weights)).run(all_clients=True)
    spans = []
    for client, (plan, _, _) in zip(result.clients, (one, other), strict=True):
        assert len(client.traces) == 6
        for trace in client.traces:
            ends, starts = ({span.name: getattr(span, at) for span in trace.spans} for at in ("end_ns", "start_ns"))
            assert sorted(span.name for span in trace.spans) == sorted(plan.order)
            writers = {tensor: step for step in plan.order for tensor in plan.step(step).outputs}
            read = [(writers[tensor], step) for step in plan.order for tensor in plan.step(step).inputs if tensor in writers]
            assert all(ends[writer] <= starts[step] + 1 for writer, step in read)
            spans += trace.spans
    for queue in {span.queue for span in spans}:
        intervals = sorted((span.start_ns, span.end_ns) for span in spans if span.queue == queue)
        assert all(end <= start + 1 for (_, end), (start, _) in pairwise(intervals))


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
def test_load_slows_computation_while_it_lasts(loads, end):
    assert simulated(single("gpu", 10.0), loads=loads).latencies_ms == (pytest.approx(end),)


def test_requests_wait_for_a_lane_and_latencies_include_the_wait():
    for every, latencies, elapsed in ((4.0, (10, 16, 22, 28), 40), (25.0, (10, 10, 10, 10), 85)):
        result = simulated(single("gpu", 10.0), runs=4, arrivals=Arrivals("periodic", every))
        assert (*result.latencies_ms, result.elapsed_ms) == pytest.approx((*latencies, elapsed))


def whole(name, processor, ms):
    return nets.Network(name, *single(processor, ms))


WHOLE = whole("a", "cpu", 1.0)


def test_urgent_request_waits_for_one_subgraph_only_and_weights_divide_a_processor():
    long, urgent = whole("long", "cpu", 5.0), whole("urgent", "cpu", 1.0)
    scene = Scene(runs=40, in_flight=4)
    urgent_scene = Scene(runs=100, arrivals=Arrivals("periodic", 20.0), deadline_ms=8.0)
    workloads = [(urgent, urgent_scene), *((long, replace(scene, runs=1000)) for _ in range(3))]
    turns, fifo = (max(Clock(long, scene, workloads, sharing=mode).run().clients[1].latencies_ms) for mode in (TurnTaking(), None))
    assert turns <= 6.0 + 1e-9 < 15 < fifo
    others = [(whole("b", "cpu", 1.0), Scene(runs=10_000, in_flight=2))]
    result = Clock(WHOLE, Scene(runs=300, in_flight=2), others, sharing=TurnTaking((3.0,))).run()
    assert len(result.clients[1].latencies_ms) == pytest.approx(100, abs=3)


#: Seconds after which a waiting test fails; no result depends on real times.
PATIENCE = 60.0


def write(folder, segments):
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
    """Lets the steps of all clients end in the order of their simulated times."""

    def __init__(self, times):
        self.times, self.clock, self.ends, self.held, self.joining, self.finished = times, 0.0, {}, {}, 0, 0
        super().__init__(Machine({}), QueueThreads(), threading.RLock(), now=lambda: self.clock)
        self.changed = threading.Condition(self.lock)

    def handle(self, event, key=None):
        end = super().handle(event, key)
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
        released = threading.Event()
        with self.changed:
            self.held[key] = released
            self.changed.notify_all()
        assert released.wait(PATIENCE)

    def conduct(self, inferences):
        while True:
            with self.changed:
                assert self.changed.wait_for(lambda: not self.joining and set(self.ends) == set(self.held), PATIENCE)
                if self.finished == inferences:
                    return
                key = min(self.ends, key=self.ends.__getitem__)
                self.clock = self.ends.pop(key)
                self.held.pop(key).set()
                count = len(self.events)
                assert self.changed.wait_for(lambda answer=count: len(self.events) > answer, PATIENCE)


@st.composite
def pair(draw):
    """Segments of two networks with random processors, and a different time for every subgraph."""
    segment = st.lists(st.sampled_from(PROCESSORS), min_size=1, max_size=3, unique=True)
    segments = [draw(st.lists(segment, min_size=1, max_size=3)) for _ in "01"]
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
@given(pair(), st.integers(1, 2), *(st.tuples(each, each) for each in (st.sampled_from([None, 125, 250]), st.integers(-1, 1))), WEIGHTS)
def test_threads_and_simulation_have_equal_events_and_answers(world, lanes, deadlines, priorities, weights):
    segments, times = world
    with TemporaryDirectory() as folder:
        shared = Conducted(times)
        networks, executors = [], []
        for user, segment, weight in zip("01", segments, weights, strict=True):
            bundle = write(Path(folder) / user, segment)
            plan = make_plan(bundle.manifest)
            named = {name: Placement(name, "null", (), name, "blocking", False, "") for name in PROCESSORS}
            places = place_subgraphs(bundle.manifest.subgraphs, named)
            steps = {name: nets.StepTime(places[name].processor, (("subgraph", times[user, name]),)) for name in plan.subgraphs}
            networks.append(nets.Network(user, plan, places, steps | {name: nets.StepTime("cpu", (("join", 0.0),)) for name in plan.joins}))
            # subgraphs end when `conduct` releases them
            held = Hooked(lambda model, run, outputs, user=user: shared.hold((user, model.stem)), "null")
            code = CompiledSubgraphs(bundle, {"null": held})
            buffers = partial(Buffers, plan, bundle.manifest.tensors)
            executors.append(Executor(plan, places, buffers, code, in_flight=lanes, tenant=Tenant(shared, user, weight)))
            executors[-1].prepare_in_flight()
        try:
            for executor, deadline, priority in zip(executors, deadlines, priorities, strict=True):
                for _ in range(lanes):
                    options = {} if deadline is None else {"deadline_s": deadline / 1e3}
                    executor.submit({"x": np.zeros((1, 3, 8, 8), np.float32)}, priority=priority, **options)
            shared.conduct(2 * lanes)
            events = list(shared.events)
        finally:
            for executor in executors:
                executor.close(wait=False)
            shared.threads.close()
    requests = zip(deadlines, priorities, strict=True)
    scenes = [Scene(runs=lanes, in_flight=lanes, deadline_ms=deadline, priority=priority) for deadline, priority in requests]
    clock = Clock(networks[0], scenes[0], [(networks[1], scenes[1])], sharing=TurnTaking(weights))
    clock.run(all_clients=True)
    assert [(event, list(answer)) for event, answer in clock.shared.events] == [(event, list(answer)) for event, answer in events]


@st.composite
def some_jobs(draw):
    result = []
    for number in range(draw(st.integers(1, 9))):
        reads = draw(st.sets(st.integers(0, number - 1), max_size=3)) if number else set()
        result.append(Job(draw(st.sampled_from(PROCESSORS)), draw(st.integers(1, 10_000)) / 7, tuple(sorted(reads))))
    return result


def test_processor_starts_a_later_job_while_an_earlier_one_must_wait():
    scheduled = schedule([Job("cpu", 5.0), Job("gpu", 1.0, (0,)), Job("gpu", 2.0), Job("cpu", 1.0, (1, 2))])
    assert (scheduled.starts, scheduled.ends, scheduled.ms) == ((0.0, 5.0, 0.0, 6.0), (5.0, 6.0, 2.0, 7.0), 7.0)
    assert scheduled.waits == ((), (0, 2), (), (1, 2, 0))
    with pytest.raises(ValueError, match="circle"):
        schedule([Job("cpu", 1.0, (1,)), Job("cpu", 1.0, (0,))])


@given(some_jobs())
def test_job_starts_at_the_end_of_the_last_job_that_it_waits_for(jobs):
    scheduled = schedule(jobs)
    for number, job in enumerate(jobs):
        assert scheduled.starts[number] == max((scheduled.ends[wait] for wait in scheduled.waits[number]), default=0.0)
        assert set(job.reads) <= set(scheduled.waits[number])
        assert scheduled.ends[number] == scheduled.starts[number] + job.ms
    assert longest_path([job.ms for job in jobs], scheduled.waits) == list(scheduled.ends)


@pytest.mark.parametrize(
    ("requested", "message"),
    [
        *(({"runs": runs}, "inferences cannot be simulated") for runs in (0, 10**9)),
        *(({"in_flight": count}, f"{count} inferences cannot be in flight") for count in (0, 65)),
        *(({"jitter": -0.1}, "jitter of -0.1"), ({"seed": -1}, "-1 is no seed"), ({"priority": 1000}, "priority")),
        *(({"deadline_ms": ms}, "deadline") for ms in (0.0, inf)),
        (lambda: Clock((WHOLE, whole("b", "cpu", 1.0)), Scene(), sharing=TurnTaking()), "do not take turns"),
        (lambda: Clock(WHOLE, Scene(), sharing=TurnTaking((-1.0,))), "weight"),
        (lambda: Clock(WHOLE, Scene(), sharing=TurnTaking(patience_ms=0.0)), "patience"),
        *((load, f"`{load}` is no load") for load in ("gpu", "gpu=0.9@50")),
        *(("gpu=much@0:1", "`gpu=much@0:1`"), ("gpu=-0.1@0:1", "-0.1 of it"), ("gpu=0.5@-1:1", "-1 ms"), ("gpu=0.5@nan:1", "nan ms")),
        *(("gpu=0.5@0:1e10", "1e+10 ms"), ("", "arrivals"), ("poisson:many", "place of a number")),
    ],
)
def test_number_out_of_range_is_refused_with_a_hint(requested, message):
    def make():
        if isinstance(requested, str):
            return parse_loads([requested]) if requested.startswith("gpu") else parse_arrivals(requested)
        return requested() if callable(requested) else Scene(**requested)

    with pytest.raises(UsageError, match=re.escape(message)) as error:
        make()
    assert error.value.hint


def test_factors_are_log_normal_around_one():
    drawn = np.log(list(islice(Scene(jitter=0.1, seed=5).factors(2), 10_000)))
    assert np.abs(drawn.mean(0)).max() < 0.005
    assert drawn.std(0) == pytest.approx([0.1, 0.1], rel=0.05)
    assert abs(np.corrcoef(drawn.T)[0, 1]) < 0.05


def test_loads_and_arrivals_are_parsed():
    loads = (Load("gpu", 0.9, 50, 155), Load("cpu", 0.5, 0, 1000), Load("dsp", 1, 2.5, 3))
    assert parse_loads(["gpu=0.9@50:155, cpu=0.5@0:1e3", "dsp=1@2.5:3"]) == loads
    assert list(islice(Arrivals("periodic", 2.5).times(7), 4)) == [0, 2.5, 5, 7.5]


LOADS = st.tuples(st.sampled_from(["cpu", "gpu"]), st.floats(0, 0.2), st.floats(0, 100), st.floats(0.01, 100))


@given(st.lists(LOADS, max_size=5))
def test_free_share_is_one_minus_the_current_loads(drawn):
    loads = [Load(processor, share, start, start + length) for processor, share, start, length in drawn]
    free, since = FreeShares(loads, ["cpu", "gpu"]), -1.0  # before the first load
    while True:
        for processor, share in free.shares.items():
            taken = sum(load.share for load in loads if load.processor == processor and load.start_ms <= since < load.end_ms)
            assert abs(share - (1 - taken)) < 1e-9
        if free.until == inf:
            break
        assert free.until >= since
        since = free.until
        free.change()
    assert free.shares == {"cpu": 1, "gpu": 1}


def test_times_are_planned_on_the_plans_device_and_predicted_from_files_on_another(bundle):
    rows = []
    for device, planned in (("pixel6", True), ("host", False)):
        world = prepare(bundle, specified(device), False, rows.append)
        assert {dict(world.times[name].parts)["subgraph"] == 1.0 for name in world.plan.subgraphs} == {planned}
    assert not rows


PIXEL6 = specified("pixel6")


def test_subgraph_takes_its_planned_time_with_contention_between_its_transfers(bundle):
    device = contending(PIXEL6, {("cpu", "gpu"): 1.5, ("gpu", "cpu"): 0.8})
    slowed = [msgspec.structs.replace(entry, predicted_ms=2.0, contended_shares=(0.5, 0.5)) for entry in bundle.manifest.subgraphs]
    times = nets.step_times(msgspec.structs.replace(bundle.manifest, subgraphs=tuple(slowed)), device)
    links = LatencyPredictor(PIXEL6).links
    # a segment with one branch has no contention
    assert times["stem"].parts == (("subgraph", 2.0),)
    send, read = links.ms("cpu", "gpu", 6 * 64, "fp32"), links.ms("gpu", "cpu", 6 * 64, "fp32")
    # the CPU computes without contention before the GPU starts and after it ends; the CPU speeds the GPU up here
    overlap = 2.0 * 0.8
    assert times["s1.gpu"].parts == (("in", send), ("subgraph", pytest.approx(overlap, rel=1e-12)), ("out", read))
    assert times["s1.cpu"].parts == (("subgraph", pytest.approx(send + overlap + (2.0 - send - overlap / 1.5), rel=1e-12)),)
    ms = LatencyPredictor(PIXEL6).join_ms("concat", (1, 10, 8, 8), 2, "cpu", "fp32")
    assert (times["s1.join"].processor, times["s1.join"].parts) == ("cpu", (("join", ms),))


def test_subgraph_without_a_planned_time_is_predicted_from_its_file(bundle):
    manifest = bundle.manifest
    silent = [msgspec.structs.replace(e, predicted_ms=None) if e.name in ("stem", "s1.gpu") else e for e in manifest.subgraphs]
    bundle = replace(bundle, manifest=msgspec.structs.replace(manifest, subgraphs=tuple(silent)))
    with pytest.raises(ValueError, match="`stem` has no predicted time"):
        nets.step_times(bundle.manifest, PIXEL6)
    mapping = {entry.name: entry for entry in nets.with_predicted_times(bundle, PIXEL6).subgraphs}
    for name in ("stem", "s1.gpu"):
        estimate = LatencyPredictor(PIXEL6).predict(open_onnx(bundle.file(f"{name}.onnx")).graph, mapping[name].processor, "fp32")
        assert (mapping[name].predicted_ms, mapping[name].contended_shares) == (estimate.computing_ms, tuple(estimate.computing.shares))
        assert 0 < sum(mapping[name].contended_shares) <= 1
    assert [mapping[e.name] for e in silent if e.predicted_ms is not None] == [e for e in silent if e.predicted_ms is not None]


def makespan(steps, device=None):
    network = nets.network_of_steps(nets.StepTable(Path("table.csv"), tuple(steps)), device)
    return Clock(network, Scene()).run().latencies_ms[0]


@st.composite
def tables(draw, processors):
    """Steps that need some earlier steps; each is on one of the processors, or on its own without `processors`."""
    steps = []
    for number in range(draw(st.integers(1, 8))):
        needs = draw(st.sets(st.sampled_from(range(number)))) if number else ()
        processor = draw(st.sampled_from(processors)) if processors else f"p{number}"
        steps.append(nets.TableStep(f"s{number}", processor, draw(st.integers(1, 50)) / 8, ";".join(f"s{need}" for need in needs)))
    return steps


@settings(max_examples=examples(30))
@given(tables(()))
def test_steps_on_separate_processors_take_the_longest_path(steps):
    end = {}
    for step in steps:
        end[step.name] = step.ms + max((end[name] for name in step.dependencies), default=0.0)
    assert makespan(steps) == pytest.approx(max(end.values()), rel=1e-12)


@settings(max_examples=examples(30))
@given(tables(("cpu", "gpu")))
def test_processor_takes_the_first_ready_step_of_the_table(steps):
    # oracle: at each tick, the common divisor of all times, every idle processor takes the first ready step of the table
    left, ended, running, now, ties = {step.name: round(8 * step.ms) for step in steps}, set(), {}, 0, False
    while len(ended) < len(steps):
        for step in steps:
            if step.name not in ended and step.processor not in running and ended.issuperset(step.dependencies):
                running[step.processor] = step.name
        for name in running.values():
            left[name] -= 1
        finished = {processor: name for processor, name in running.items() if not left[name]}
        ended.update(finished.values())
        running = {processor: name for processor, name in running.items() if processor not in finished}
        # of two steps that end at one time, one is reported first, and its processor continues without the other's result
        ties = ties or len(finished) > 1
        now += 1
    assert ties or makespan(steps) == pytest.approx(now / 8, rel=1e-12)


def test_read_back_uses_the_queue_of_the_gpu_and_delays_its_next_step():
    device = load_device("mi9")
    read_back = LatencyPredictor(device).links.parts_of_bytes("gpu", "cpu", 4_000_000)["gpu"]
    steps = [nets.TableStep("a", "gpu", 2.0, bytes=4_000_000), nets.TableStep("b", "gpu", 3.0), nets.TableStep("c", "cpu", 1.0, "a")]
    slower = device.slowdown("gpu", ["cpu"]).arithmetic
    contended = 1.0 * device.slowdown("cpu", ["gpu"]).arithmetic  # the GPU computes during the whole step of the CPU
    assert makespan(steps, device) == pytest.approx(2.0 + read_back + contended + 3.0 - contended / slower, rel=1e-12)


@settings(max_examples=examples(30))
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 40)), min_size=2, max_size=3),
    st.sampled_from((0.0, 0.25)),
    st.lists(st.sampled_from((0.7, 1.0, 1.25, 1.5)), min_size=6, max_size=6),
)
def test_contention_counts_only_while_another_processor_computes(times, feeder, drawn):
    names = ("cpu", "gpu", "dsp")[: len(times)]
    factors = dict(zip(permutations(("cpu", "gpu", "dsp"), 2), drawn, strict=True))
    device = contending(specified("mi9"), factors)
    works = [
        ProcessorWork(name, start, ms, contention_factors(device, name, Shares(arithmetic=1.0), names), feeder * (name == "gpu"))
        for name, (start, ms) in zip(names, times, strict=True)
    ]
    tick, left, rows, now = 1e-2, [work.ms for work in works], [0.0] * len(works), 0.0
    together = [dict.fromkeys(names, 0.0) for _ in works]
    while max(left) > 0:
        running = [i for i, work in enumerate(works) if left[i] > 0 and work.start_ms <= now + tick / 2]
        for i in running:
            fed = sum(works[other].feeder for other in running if other != i) if i == 0 else 0.0
            left[i] -= tick * (1 - fed) / prod(factors[names[i], names[other]] for other in running if other != i)
            rows[i] = now + tick
            for other in running:
                together[i][names[other]] += tick * (other != i)
        now += tick
    ended = end_times(works)
    assert [end.ms for end in ended] == pytest.approx(rows, abs=0.25)
    for end, expected, work in zip(ended, together, works, strict=True):
        assert {name: end.together.get(name, 0.0) for name in names} == pytest.approx(expected, abs=0.25)
        if not end.together:
            assert end.ms == pytest.approx(work.start_ms + work.ms)


WRONG = {
    "a,cpu,1,b,\nb,cpu,1,c,\nc,cpu,1,b,": "line 3: steps wait for each other: `b` needs `c` needs `b`",
    "a,cpu,1,,\nb,cpu,1,d,": "line 3: `b` needs `d`, which is no step of the table",
    "a,cpu,0,,": "line 2: `ms` is wrong",
    "a,cpu,1,,\na,gpu,1,,": "line 3: the step `a` is in line 2 already",
    "a b,cpu,1,,": "line 2: the name `a b`",
    "": "has a header and no step",
}


@pytest.mark.parametrize(("rows", "problem"), WRONG.items(), ids=WRONG.values())
def test_invalid_step_table_is_refused_with_its_line(rows, problem, tmp_path):
    path = tmp_path / "steps.csv"
    path.write_text(f"name,processor,ms,needs,bytes\n{rows}\n")
    with pytest.raises(StretchError, match=re.escape(problem)):
        nets.read_steps(path)


CHIP = Thermal("assumed", 10.0, 60.0, 25.0, (Throttle(40.0, 0.8), Throttle(50.0, 0.5)), 3.0, 1.0, {"gpu": 4.0, "cpu": 2.0})
GPU = {"gpu": Power(4.0, 0.0)}


def test_temperature_follows_the_formula_of_a_single_thermal_mass():
    heat, full_rise = Heat(Thermal("assumed", 10.0, 60.0, 25.0, (), 3.0, 1.0, {"gpu": 4.0}), GPU), 40 * (1 - exp(-1))
    for busy, until, rise in (({"gpu": 1.0}, 60_000.0, full_rise), ({}, 120_000.0, full_rise * exp(-1))):
        heat.set(busy)
        heat.advance(until)
        assert (heat.temperature_c, heat.processors_mj) == pytest.approx((25 + rise, 240_000))
    assert (heat.until, heat.changes, heat.speed) == (inf, 0, 1.0)


@settings(max_examples=examples(30))
@given(st.lists(st.tuples(st.floats(1, 1e5), st.floats(0, 1)), min_size=1, max_size=20))
def test_throttling_starts_at_its_temperature_and_agrees_with_eulers_method(phases):
    heat, now, small = Heat(CHIP, GPU), 0.0, 25.0
    for length, share in phases:
        end = now + length
        while now < end:
            heat.set({"gpu": share})
            speed, until = heat.speed, min(end, heat.until)
            watts, steps = 4.0 * share * speed, 200
            for _ in range(steps):  # Euler's method, as an independent sum
                small += (25 + 10 * watts - small) * (until - now) / steps / 60_000
            heat.advance(until)
            assert heat.temperature_c == pytest.approx(small, abs=0.15)
            if until == heat.until and until < end:
                heat.change()
            now = until
    assert 25 - 1e-9 <= heat.temperature_c <= 65


def test_power_is_of_the_profile_or_else_of_the_thermal_description():
    mi9, change = specified("mi9"), msgspec.structs.replace
    assert powers(mi9, CHIP, ["gpu"])["gpu"].computing_w == mi9.processor("gpu").cores.power_w.value != CHIP.power_w["gpu"]
    gpu = mi9.processors["gpu"]
    silent = change(gpu, core_sets={name: change(cores, power_w=None) for name, cores in gpu.core_sets.items()})
    assert powers(change(mi9, processors={"gpu": silent}), CHIP, ["gpu"])["gpu"].computing_w == CHIP.power_w["gpu"]
    assert thermal_of(change(mi9, thermal=CHIP)) is CHIP
    with pytest.raises(UsageError, match="heat model"):
        thermal_of(mi9)
