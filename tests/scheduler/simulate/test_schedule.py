"""The schedule of jobs on processors is that of the state machine."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.placement.place import Placement
from scheduler.runtime.machine import Finish, InputReady, Machine, Start, StepDone
from scheduler.runtime.plan import PlannedSubgraph, plan_of
from scheduler.simulate.schedule import Job, schedule

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


@given(some_jobs())
def test_state_machine_drives_subgraphs_of_these_times_to_the_same_end(jobs):
    names = [f"j{i}" for i in range(len(jobs))]
    steps = [
        PlannedSubgraph(name, "s", "f", job.processor, tuple(f"t{i}" for i in job.reads) or ("x",), (f"t{number}",))
        for number, (name, job) in enumerate(zip(names, jobs, strict=True))
    ]
    plan = plan_of(["x"], [f"t{len(jobs) - 1}"], steps, [])
    # given in an order in which they can run, they are preferred in that order
    assert list(plan.order) == names
    places = {
        name: Placement(job.processor, "null", (), job.processor, "blocking", False, "test") for name, job in zip(names, jobs, strict=True)
    }
    machine, clock, coming, order = Machine.of(plan, places), SimpleNamespace(now=0.0), [], 0
    event = InputReady(0)
    while True:
        for instruction in machine.handle(event):
            if isinstance(instruction, Finish):
                assert clock.now == pytest.approx(schedule(jobs).ms)
                return
            if isinstance(instruction, Start):
                coming.append((clock.now + jobs[names.index(instruction.step)].ms, order, instruction))
                order += 1
        coming.sort(key=lambda one: one[:2])
        clock.now, _, started = coming.pop(0)
        event = StepDone(0, started.step, started.queue)
