"""The page's state machine answers like the scheduler's, whatever the plan and the order in which steps end."""

import json
import shutil
import subprocess
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.runtime.machine import InputReady, Machine, StepDone, StepFailed
from scheduler.tools.web.server import PAGE
from tests.scheduler.runtime.plans import plans

pytestmark = [pytest.mark.hypothesis, pytest.mark.skipif(shutil.which("node") is None, reason="there is no node here")]

#: Reads a plan and events line by line, and writes what the machine answers.
DRIVER = """
import { createInterface } from "node:readline";
import { Machine } from "./machine.js";
let machine;
for await (const line of createInterface({ input: process.stdin })) {
  const { plan, queues, event } = JSON.parse(line);
  if (plan) machine = new Machine(plan, queues);
  process.stdout.write(JSON.stringify(event ? machine.handle(event) : []) + "\\n");
}
"""


@pytest.fixture(scope="module")
def page_machine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    shutil.copy(PAGE / "machine.js", folder)
    (folder / "package.json").write_text('{"type": "module"}')
    (folder / "driver.js").write_text(DRIVER)
    process = subprocess.Popen(["node", folder / "driver.js"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(**message):
        process.stdin.write(msgspec.json.encode(message) + b"\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    yield ask
    process.stdin.close()
    process.wait(timeout=20)
    process.stdout.close()


@given(plans(), st.data())
def test_page_and_scheduler_answer_alike(page_machine, planned, data):
    plan, placements = planned
    # a worker for each processor: every queue but the calling thread blocks
    places = {name: replace(place, queue=plan.subgraphs[name].processor, dispatch="blocking") for name, place in placements.items()}
    machine = Machine.of(plan, places)
    stated = {"inputs": plan.inputs, "outputs": plan.outputs, "order": list(plan.order)}
    stated |= {"subgraphs": list(plan.subgraphs.values()), "joins": list(plan.joins.values())}
    page_machine(plan=stated, queues={name: place.queue for name, place in places.items()})
    running, event = {}, InputReady(0)
    while True:
        instructions = machine.handle(event)
        assert page_machine(event=event) == msgspec.to_builtins(instructions)
        running |= {item.queue: item.step for item in instructions if type(item).__name__ in ("Submit", "Join")}
        if not running:
            break
        queue = data.draw(st.sampled_from(sorted(running)))
        step = running.pop(queue)
        failed = data.draw(st.integers(0, 19)) == 0
        event = StepFailed(0, step, queue, "lost") if failed else StepDone(0, step, queue)
