"""The simulation against the runtime, event for event."""

import threading
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.bundle.load import load_bundle
from scheduler.delegates.null import NullCompiled, NullDelegate, NullInvocation
from scheduler.placement.place import Placement, place_subgraphs
from scheduler.runtime.buffers import Buffers
from scheduler.runtime.code import CompiledSubgraphs
from scheduler.runtime.executor import Driver, Executor, Tenant
from scheduler.runtime.machine import Finish, Machine, Start, StepDone
from scheduler.runtime.plan import make_plan
from scheduler.runtime.threads import QueueThreads
from scheduler.simulate.clock import Clock, TurnTaking
from scheduler.simulate.networks import Network, StepTime
from scheduler.simulate.scene import Scene
from tests.effort import examples
from tests.scheduler.bundles import Builder
from tests.scheduler.simulate.plans import PROCESSORS
from tests.scheduler.simulate.test_clock import ROOTS

#: Seconds after which a test gives up; nothing depends on how long anything takes.
PATIENCE = 60.0


class ConductedInvocation(NullInvocation):
    """Ends when the conductor says so."""

    def __init__(self, conductor, name):
        super().__init__(0.0)
        self.conductor, self.name = conductor, name

    def wait(self):
        self.conductor.hold(self.name)


class ConductedCompiled(NullCompiled):
    """A subgraph of which only the shapes are known."""

    def __init__(self, compiled, conductor, name):
        super().__init__(compiled.inputs, compiled.outputs, 0.0)
        self.conductor, self.name = conductor, name

    def bind(self, inputs, outputs):
        self.check(inputs, outputs)
        return ConductedInvocation(self.conductor, self.name)


class ConductedDelegate(NullDelegate):
    """`null`, whose costs are the conductor's."""

    def __init__(self, conductor):
        super().__init__()
        self.conductor = conductor

    def compile(self, model):
        return ConductedCompiled(super().compile(model), self.conductor, model.stem)


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


class Own:
    """One user's part of a conductor."""

    def __init__(self, shared, user):
        self.shared, self.user = shared, user

    def hold(self, name):
        self.shared.hold((self.user, name))


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
            code = CompiledSubgraphs(bundle, {"null": ConductedDelegate(Own(shared, user))})
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
