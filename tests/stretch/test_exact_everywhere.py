"""Bundles of bands and parallel paths in all precisions, formats and delegates, pipelined, verified and explained."""

import pytest

pytest.importorskip("torch")
from scheduler.bundle.load import load_bundle
from scheduler.checks.verify import verify_bundle
from scheduler.delegates.litert import LiteRtDelegate
from scheduler.runtime.session import Session
from stretch.export.tflite import export_tflite
from stretch.stages.explain import explain_here, explain_on
from tests.predictors.specified import specified
from tests.stretch.exact_bundles import images, made, near, original

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return made(tmp_path_factory.mktemp("exact") / "bundle")


@pytest.mark.parametrize(
    "mapping",
    [
        {},
        {"gpu": "reference"},
        {"cpu": "reference", "gpu": "cpu"},
        pytest.param({"gpu": "opencl"}, marks=[pytest.mark.opencl, pytest.mark.slow]),
        pytest.param({"cpu": "opencl", "gpu": "cpu"}, marks=[pytest.mark.opencl, pytest.mark.slow]),
    ],
    ids=str,
)
def test_every_delegate_computes_the_original_alone_and_with_several_in_flight(bundle, mapping):
    inputs = images(6)
    with Session(bundle, mapping, in_flight=3) as session:
        assert all(near(session(x), original(x)) for x in inputs[:2])
        futures = [session.submit(x) for x in inputs]
        assert all(near(future.result(60), original(x)) for x, future in zip(inputs, futures, strict=True))


def test_every_operator_is_explained_on_this_machine_and_on_the_device(bundle):
    for value in (explain_here(bundle, {}, lambda name: None), explain_on(bundle, specified("mi9"), lambda name: None)):
        assert {op.subgraph for op in value.ops} >= {sub.name for sub in bundle.manifest.subgraphs}
        assert sum(op.op.startswith("join") for op in value.ops) == len(bundle.manifest.joins) == 3


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_tflite_file_has_a_signature_for_each_band_and_path_and_computes_the_original(bundle, tmp_path, precision):
    pytest.importorskip("ai_edge_litert")
    built = export_tflite(bundle, tmp_path / "out", images(), "random", precision=dict.fromkeys(("cpu", "gpu"), precision))
    steps = {sub.name for sub in bundle.manifest.subgraphs} | {join.name for join in bundle.manifest.joins}
    assert set(built.losses) == steps | {"output"}
    assert verify_bundle(tmp_path / "out").ok
    x, tolerance = images(1)[0], {"fp32": 1e-5, "fp16": 1e-2, "int8": 0.1}[precision]
    with Session(load_bundle(tmp_path / "out"), delegates={name: LiteRtDelegate() for name in ("cpu", "gpu")}) as session:
        assert near(session(x), original(x), tolerance)
        assert near(session.submit(x).result(60), original(x), tolerance)
