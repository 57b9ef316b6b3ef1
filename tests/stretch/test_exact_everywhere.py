"""Bands of rows and own paths go wherever bundles go: other precisions and formats, delegates, several in flight, checks, traces."""

import json
import shutil

import numpy as np
import pytest

pytest.importorskip("torch")
from scheduler.bundle.load import load_bundle
from scheduler.checks.verify import random_input, verify_bundle
from scheduler.delegates.litert import LiteRtDelegate
from scheduler.measure.benchmark import Effort, benchmark
from scheduler.measure.throughput import throughput
from scheduler.measure.trace_files import write_perfetto
from scheduler.runtime.session import Session
from stretch.export.precision import export_precision
from stretch.export.qnn import export_contexts
from stretch.export.tflite.bundle import export_tflite
from stretch.stages.explain import explain_here, explain_on
from tests.predictors.specified import specified
from tests.stretch.exact_bundles import images, made, near, original

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return made(tmp_path_factory.mktemp("exact") / "bundle")


@pytest.fixture(scope="module")
def for_dsp(tmp_path_factory):
    return made(tmp_path_factory.mktemp("exact") / "dsp", "dsp")


@pytest.mark.parametrize(
    "mapping",
    [
        {},
        {"gpu": "reference"},
        {"cpu": "reference", "gpu": "cpu"},
        pytest.param({"gpu": "opencl"}, marks=pytest.mark.opencl),
        pytest.param({"cpu": "opencl", "gpu": "cpu"}, marks=[pytest.mark.opencl, pytest.mark.slow]),
    ],
    ids=str,
)
def test_every_delegate_gives_the_original_one_at_a_time_and_with_several_in_flight(bundle, mapping):
    inputs = images(6)
    with Session(bundle, mapping, in_flight=3) as session:
        assert all(near(session(x), original(x)) for x in inputs[:2])
        futures = [session.submit(x) for x in inputs]
        assert all(near(future.result(60), original(x)) for x, future in zip(inputs, futures, strict=True))


def test_rates_with_several_in_flight_are_measured(bundle):
    with Session(bundle, in_flight=2) as session:
        found = throughput(session, images(1)[0], in_flight=2, rounds=2, burst=2, warmup=0)
        assert found.submitted.per_second > 0
        assert len(session.submitted_traces) > 0


def test_bundle_is_compared_with_its_controls(bundle):
    with Session(bundle) as session:
        found = benchmark(session, images(1)[0], Effort(rounds=2, warmup=0))
    assert found.error < 1e-5
    assert {name.partition(", ")[0] for name in found.rounds} >= {"branched", "original", "same net as one graph"}


def test_trace_shows_the_rows_that_are_copied_and_every_subgraph_and_join(bundle, tmp_path):
    with Session(bundle) as session:
        session(images(1)[0])
        spans = session.trace.spans
        write_perfetto(tmp_path / "trace.json", {"run": [session.trace]})
    assert {span.name for span in spans if span.kind == "subgraph"} == {sub.name for sub in bundle.manifest.subgraphs}
    assert {span.name for span in spans if span.kind == "join"} == {join.name for join in bundle.manifest.joins}
    copied = [sub.name for sub in bundle.manifest.subgraphs if sub.rows]
    assert copied
    assert {span.name for span in spans if span.kind == "conversion" and "rows" in span.name} == {f"{name} rows" for name in copied}
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


def test_bundle_is_verified_and_a_band_with_other_weights_is_found(bundle, tmp_path):
    assert verify_bundle(bundle.path).ok
    folder = shutil.copytree(bundle.path, tmp_path / "copy")
    upper = next(sub.file for sub in bundle.manifest.subgraphs if sub.rows)
    content = bytearray((folder / upper).read_bytes())
    content[len(content) // 2] ^= 0x40
    (folder / upper).write_bytes(bytes(content))
    assert not verify_bundle(folder).ok


def test_every_operator_is_explained_here_and_on_the_device(bundle):
    for found in (explain_here(bundle, [], lambda name: None, []), explain_on(bundle, specified("mi9"), lambda name: None, [])):
        assert {op.subgraph for op in found.ops} >= {sub.name for sub in bundle.manifest.subgraphs}
        assert sum(op.op.startswith("join") for op in found.ops) == len(bundle.manifest.joins) == 3


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_tflite_file_has_a_signature_for_each_band_and_path_and_gives_the_original(bundle, tmp_path, precision):
    pytest.importorskip("ai_edge_litert")
    made = export_tflite(bundle, tmp_path / "out", images(), "random", precision=dict.fromkeys(("cpu", "gpu"), precision))
    steps = {sub.name for sub in bundle.manifest.subgraphs} | {join.name for join in bundle.manifest.joins}
    assert set(made.losses) == steps | {"output"}
    assert verify_bundle(tmp_path / "out").ok
    x, loose = images(1)[0], {"fp32": 1e-5, "fp16": 1e-2, "int8": 0.1}[precision]
    with Session(load_bundle(tmp_path / "out"), delegates={name: LiteRtDelegate() for name in ("cpu", "gpu")}) as session:
        assert near(session(x), original(x), loose)
        assert near(session.submit(x).result(60), original(x), loose)


@pytest.mark.slow
def test_half_precision_of_one_processor_leaves_the_other_alone(bundle, tmp_path):
    export_precision(bundle, tmp_path / "half", {"gpu": "fp16"}, images(), "random")
    half = load_bundle(tmp_path / "half", check_hashes=True)
    assert {(sub.processor, sub.precision) for sub in half.manifest.subgraphs} == {("cpu", "fp32"), ("gpu", "fp16")}
    x = images(1)[0]
    with Session(half) as session:
        assert near(session(x), original(x), 1e-2)
    assert verify_bundle(half.path).ok


@pytest.mark.slow
@pytest.mark.qnn
def test_bands_and_paths_in_int8_run_on_the_simulator_and_are_compiled_for_a_chip(for_dsp, tmp_path):
    export_precision(for_dsp, tmp_path / "int8", {"dsp": "int8"}, images(), "random")
    int8 = load_bundle(tmp_path / "int8")
    x = random_input(int8)
    with Session(int8) as plain, Session(int8, {"dsp": "dsp"}) as simulated:
        assert near(simulated(x), plain(x), 0.05)
    found = export_contexts(int8, tmp_path / "coded", ["sm8350"])
    lowered = {sub.name for sub in int8.manifest.subgraphs if sub.precision == "int8"}
    assert set(found.losses["sm8350"]) == lowered == {"s1.dsp", "s2.dsp", "s3.dsp"}
    assert verify_bundle(tmp_path / "coded").ok


@pytest.mark.slow
@pytest.mark.parametrize("mapping", [{}, {"gpu": "reference"}, pytest.param({"gpu": "opencl"}, marks=pytest.mark.opencl)], ids=str)
def test_batch_above_one_is_divided_by_rows_and_paths_too(tmp_path, mapping):
    several = made(tmp_path / "several", batch=3)
    x = np.concatenate(images(3))
    with Session(several, mapping) as session:
        assert near(session(x), original(x))
        assert near(session.submit(x).result(60), original(x))
    assert verify_bundle(several.path).ok
