"""The web page's server: token, headers, served files and checks of results; and the page's state machine."""

import http.client
import json
import shutil
import ssl
import subprocess
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import StretchError
from scheduler.bundle.load import load_bundle
from scheduler.runtime.machine import InputReady, Machine, StepDone, StepFailed
from scheduler.runtime.record import replay
from scheduler.tools.web.server import MAX_BYTES, PAGE, RUNTIME_FILES, PageBundle, PageServer, runtime_folder
from tests.scheduler.doubles import whole
from tests.scheduler.runtime.plans import plans

DEVICE = {"agent": "a browser", "cores": 8, "isolated": True, "webgpu": True, "fp16": True, "webnn": False, "lacks": []}


@pytest.fixture
def server(bundle_dir, tmp_path):
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    for name in RUNTIME_FILES:
        (runtime / name).write_bytes(b"plain")
        (runtime / f"{name}.gz").write_bytes(b"packed")
    sentences = []
    with PageServer([PageBundle("b0", "tiny", load_bundle(bundle_dir))], runtime, report=sentences.append) as server:
        server.sentences = sentences
        yield server


def ask(server, path, body=None, token=None, connect=http.client.HTTPConnection, **headers):
    content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    with closing(connect("127.0.0.1", server.port, timeout=60)) as connection:
        connection.request("GET" if body is None else "POST", f"/{server.token if token is None else token}/{path}", content, headers)
        response = connection.getresponse()
        return response, response.read()


def test_wrong_token_is_refused_for_every_request(server):
    for token in ("x", server.token[:-1], "%2e%2e", ""):
        for path, body in (("", None), ("page.json", None), ("result", {}), ("bundles/b0/files/model.onnx", None)):
            response, data = ask(server, path, body, token)
            assert (response.status, "token" in json.loads(data)["problem"]) == (403, True)


def test_every_answer_isolates_the_page_and_forbids_inline_code_and_other_hosts(server):
    for path in ("", "page.js", "worker.js", "page.json", "nothing", "runtime/ort.wasm.min.mjs"):
        headers = ask(server, path)[0].headers
        assert (headers["Cross-Origin-Opener-Policy"], headers["Cross-Origin-Embedder-Policy"]) == ("same-origin", "require-corp")
        policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
        assert policy["default-src"] == "'none'"
        assert not any("unsafe-inline" in sources or "*" in sources or "http" in sources for sources in policy.values())


def test_only_files_that_the_manifest_lists_are_served(server, bundle_dir):
    listed = next(iter(load_bundle(bundle_dir).manifest.files))
    assert ask(server, f"bundles/b0/files/{listed}")[1] == (bundle_dir / listed).read_bytes()
    (bundle_dir / "private.txt").write_text("mine")
    files = [f"bundles/b0/files/{path}" for path in ("private.txt", "bundle.json", "../private.txt", "..%2fprivate.txt", "")]
    for path in (*files, "server.py", "../server.py", "runtime/other.mjs", "bundles/b1/files/model.onnx", "networks/x"):
        assert ask(server, path)[0].status == 404
    # browsers that accept gzip get the compressed runtime
    assert ask(server, "runtime/ort.wasm.min.mjs")[1] == b"plain"
    response, data = ask(server, "runtime/ort.wasm.min.mjs", **{"Accept-Encoding": "gzip, br"})
    assert (response.headers["Content-Encoding"], data) == ("gzip", b"packed")


def recording(bundle):
    """A recording like the page's, made with the scheduler's state machine."""
    machine, turns, events = bundle.machine(), [], [InputReady(0)]
    while events:
        event = events.pop(0)
        instructions = machine.handle(event)
        turns.append({"event": event, "instructions": instructions})
        events += [StepDone(0, item.step, item.queue) for item in instructions if type(item).__name__ in ("Submit", "Join")]
    return turns


def result(server, **changes):
    contestants = ["branches", "original on cpu", "original on gpu", "sequential_same_macs on cpu", "sequential_same_macs on gpu"]
    times = {name: [1.0 + number + 0.01 * turn for turn in range(20)] for number, name in enumerate(contestants)}
    keys, rows = ("step", "queue", "start_ms", "end_ms", "handover_ms"), (("a", "cpu", 0, 2, 0.1), ("b", "gpu", 1, 3, 0.3))
    spans = [dict(zip(keys, row, strict=True)) for row in rows]
    body = {"bundle": "b0", "device": DEVICE, "threads": 4, "providers": {"cpu": "wasm", "gpu": "webgpu"}, "times_ms": times}
    body |= {"differences": dict.fromkeys(contestants, 1e-7), "spans": spans, "record": recording(server.bundles[0])}
    return msgspec.json.encode(body | changes)


def test_times_become_ratios_with_intervals_and_the_recording_is_replayed(server, tmp_path):
    response, data = ask(server, "result", result(server))
    assert response.status == 200, data
    (answer,) = server.answers
    assert answer.median_ms["branches"] == pytest.approx(1.095)
    best = next(ratio for ratio in answer.ratios if ratio.over == "original on cpu")
    assert best.ratio == pytest.approx(2.095 / 1.095)
    assert best.low <= best.ratio <= best.high
    assert (answer.overlap_ms, answer.handover_ms, answer.right) == (pytest.approx(1), pytest.approx(0.2), True)
    record = tmp_path / "page.jsonl"
    record.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in server.lines))
    assert replay(record).finished == 1


@pytest.mark.parametrize(
    "changes",
    [
        *({"times_ms": {"branches": times}} for times in ([-1.0], [1e30], "soon")),
        {"times_ms": {"branches": [1.0, 2.0], "original on cpu": [1.0]}},
        *({"times_ms": {}}, {"bundle": "another"}, {"threads": 0}, {"device": {"agent": "x" * 5000}}, {"more": 1}),
        {"record": [{"event": {"type": "InputReady", "lane": 0}, "instructions": []}]},
        {"record": [{"event": {"type": "StepDone", "lane": 0, "step": "x", "queue": "y"}, "instructions": []}]},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_impossible_measurement_is_refused_in_one_sentence_and_changes_nothing(server, changes):
    response, data = ask(server, "result", result(server, **changes))
    assert response.status in (400, 409)
    assert "\n" not in json.loads(data)["problem"]
    assert (server.answers, server.lines, len(server.sentences)) == ([], [], 1)


def test_a_message_that_is_no_json_or_too_long_is_refused(server):
    for body in (b"", b"{", b'{"times": NaN}', b"\xff\xfe", b"[" * 100_000):
        assert ask(server, "result", body)[0].status == 400
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)) as connection:
        connection.request("POST", f"/{server.token}/result", headers={"Content-Length": str(MAX_BYTES + 1)})
        assert connection.getresponse().status == 413
    assert server.answers == []


def test_second_page_is_refused_until_the_first_has_ended_or_failed(server):
    assert ask(server, "start", {"device": DEVICE})[0].status == 200
    response, data = ask(server, "start", {"device": DEVICE})
    assert (response.status, "another page" in json.loads(data)["problem"]) == (409, True)
    assert ask(server, "failure", {"problem": "the device was lost"})[0].status == 200
    assert server.sentences[-1] == "the page gave up: the device was lost"
    assert ask(server, "start", {"device": DEVICE})[0].status == 200
    assert not server.ended.is_set()


def test_expected_outputs_agree_with_the_whole_model(server, bundle_dir):
    bundle = server.bundles[0]
    name, output = bundle.manifest.inputs[0], bundle.manifest.outputs[0]
    x = np.frombuffer(ask(server, f"bundles/b0/tensors/{name}")[1], np.float32).reshape(bundle.manifest.model.input_shape)
    want = whole(bundle_dir, x)
    got = np.frombuffer(ask(server, f"bundles/b0/outputs/{output}")[1], np.float32).reshape(want.shape)
    assert np.allclose(got, want, atol=1e-6)


def test_a_page_for_other_machines_is_served_by_https(bundle_dir, tmp_path):
    pytest.importorskip("cryptography")
    with PageServer([PageBundle("b0", "tiny", load_bundle(bundle_dir))], tmp_path, host="0.0.0.0") as server:
        assert server.address.startswith("https://")
        assert urlsplit(server.address).port == server.port
        connect = partial(http.client.HTTPSConnection, context=ssl._create_unverified_context())
        assert json.loads(ask(server, "page.json", connect=connect)[1])["bundles"][0]["title"] == "tiny"


def test_package_with_another_hash_is_refused_and_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "package.tgz").write_bytes(b"another")
    for name, message in (("package.tgz", "not the package"), ("none.tgz", "cannot read")):
        with pytest.raises(StretchError, match=message):
            runtime_folder(tmp_path / name)
    assert not any(Path(tmp_path / "cache").rglob("*.mjs"))


#: Reads a plan and events line by line, and writes the machine's answers.
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

    def ask_machine(**message):
        process.stdin.write(msgspec.json.encode(message) + b"\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    yield ask_machine
    process.stdin.close()
    process.wait(timeout=60)
    process.stdout.close()


@pytest.mark.hypothesis
@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node here")
@given(plans(), st.data())
def test_state_machines_of_page_and_scheduler_give_equal_answers(page_machine, planned, data):
    plan, placements = planned
    # the page has one worker per processor, so that every queue is blocking
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
