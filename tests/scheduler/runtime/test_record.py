from contextlib import closing

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictors.errors import StretchError
from scheduler.runtime.events import Event, InputReady, Instruction, Start, StepDone
from scheduler.runtime.machine import Machine
from scheduler.runtime.record import Recorder, Replay, replay
from scheduler.runtime.session import Session
from tests.scheduler.runtime.plans import plans


@pytest.fixture
def recorded(bundle_dir, tmp_path):
    """The record of two runs and of three inferences in flight."""
    path, x = tmp_path / "run.jsonl", np.zeros((1, 3, 8, 8), np.float32)
    with Session(bundle_dir, {"gpu": "reference"}, record=path) as session:
        session(x)
        for future in [session.submit(x) for _ in range(3)]:
            future.result(60)
        session(x)
    return path


def lines(path):
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]


def test_record_of_a_real_run_is_answered_alike_by_a_fresh_machine(recorded):
    # Eight steps an inference and its input; runs and inferences in flight are a machine each.
    assert replay(recorded) == Replay(machines=2, events=5 * 9, finished=5)


def test_failed_run_is_part_of_the_record(bundle_dir, tmp_path):
    from tests.scheduler.runtime.test_session import Flaky

    armed, x = {"s1.gpu": RuntimeError("broken")}, np.zeros((1, 3, 8, 8), np.float32)
    with Session(bundle_dir, delegates={"cpu": Flaky(armed)}, record=tmp_path / "r") as session:
        with pytest.raises(StretchError, match="broken"):
            session(x)
        armed.clear()
        session(x)
    assert replay(tmp_path / "r").finished == 1
    assert any("StepFailed" in str(line) for line in lines(tmp_path / "r"))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda found: found[2]["instructions"][0].update(step="head"), r"line 3 of .* answers .*head.*, the state machine"),
        (lambda found: found[2]["instructions"].pop(), "line 3 of .* answers"),
        (lambda found: found[2]["event"].update(step="s1.cpu"), "line 3 of .* cannot follow what stands before it"),
        (lambda found: found.pop(2), "line 3 of .* cannot follow"),
        (lambda found: found.insert(1, found[1]), "line 3 of .* cannot follow what stands before it: lane 0 is not free"),
        (lambda found: found.pop(0), "which no line before it opens"),
        (lambda found: found[0].update(schema=9), "has schema 9"),
        (lambda found: found[0]["placements"].pop("stem"), "placed nowhere"),
        (lambda found: found[0]["subgraphs"][0].update(inputs=["lost"]), "waits for a tensor that nothing writes"),
        (lambda found: found[0].update(lanes=0), "is no line of a record"),
        (lambda found: found[1].update(wings=2), "is no line of a record"),
        (lambda found: found.clear(), "it has no line"),
    ],
)
def test_tampered_record_is_refused_with_the_line(recorded, change, told):
    found = lines(recorded)
    change(found)
    recorded.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in found))
    with pytest.raises(StretchError, match=told):
        replay(recorded)


def test_record_that_cannot_be_written_is_told_before_anything_runs(bundle_dir, tmp_path):
    with pytest.raises(StretchError, match="cannot write the record"):
        Session(bundle_dir, record=tmp_path / "nowhere" / "run.jsonl")


@settings(deadline=None)
@given(plans(), st.data())
def test_any_machine_comes_back_from_its_record(tmp_path_factory, case, data):
    path = tmp_path_factory.mktemp("r") / "run.jsonl"
    machine = Machine(*case)
    with closing(Recorder(path)) as recorder:
        number, running, event = recorder.open(machine), [], InputReady(0)
        while event is not None:
            answer = machine.handle(event)
            recorder.note(number, event, answer)
            running += [instruction for instruction in answer if isinstance(instruction, Start)]
            start = running.pop(data.draw(st.integers(0, len(running) - 1))) if running else None
            event = None if start is None else StepDone(start.lane, start.step, start.queue)
    assert replay(path) == Replay(1, 1 + len(case[0].order), 1)


def test_every_event_and_instruction_survives_json():
    from scheduler.runtime import events
    from tests.scheduler.runtime.plans import GPU

    some = [
        events.InputReady(1),
        events.StepDone(1, "a", "q"),
        events.StepFailed(1, "a", "q", "why"),
        events.StepReturned(1, "a", "q", GPU),
        events.Replaced("a", GPU),
    ]
    assert msgspec.json.decode(msgspec.json.encode(some), type=list[Event]) == some
    told = [events.Enqueue(0, "a", "q"), events.Wait({"q": "a"}), events.Finish(0), events.Fail(0, "a", "why")]
    assert msgspec.json.decode(msgspec.json.encode(told), type=list[Instruction]) == told
