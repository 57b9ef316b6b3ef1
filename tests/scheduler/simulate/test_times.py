from dataclasses import replace

import msgspec
import pytest

from predictors.predictor import LatencyPredictor
from scheduler.bundle.load import load_bundle
from scheduler.formats.onnx import open_onnx
from scheduler.simulate.times import contention_factors, step_times, with_times
from tests.predictors.specified import specified

PIXEL6 = specified("pixel6")


@pytest.fixture
def bundle(bundle_dir):
    return load_bundle(bundle_dir)


def test_subgraph_takes_its_planned_time_and_contention_between_its_exchanges(bundle):
    slowed = [msgspec.structs.replace(entry, predicted_ms=2.0, contention=1.5) for entry in bundle.manifest.subgraphs]
    times = step_times(msgspec.structs.replace(bundle.manifest, subgraphs=tuple(slowed)), PIXEL6)
    links = LatencyPredictor(PIXEL6).links
    # a segment of one branch has no company
    assert times["stem"].parts == (("subgraph", 2.0),)
    assert times["s1.cpu"].parts == (("subgraph", 3.0),)
    into, out = links.ms("cpu", "gpu", 6 * 64, "fp32"), links.ms("gpu", "cpu", 6 * 64, "fp32")
    assert times["s1.gpu"].parts == (("in", into), ("subgraph", 3.0), ("out", out))
    ((doing, ms),) = times["s1.join"].parts
    assert (doing, times["s1.join"].processor) == ("join", "cpu")
    assert ms == LatencyPredictor(PIXEL6).join_ms("concat", (1, 10, 8, 8), 2, "cpu", "fp32")


def test_subgraph_without_a_planned_time_is_predicted_from_its_file(bundle):
    manifest = bundle.manifest
    silent = [msgspec.structs.replace(e, predicted_ms=None) if e.name in ("stem", "s1.gpu") else e for e in manifest.subgraphs]
    bundle = replace(bundle, manifest=msgspec.structs.replace(manifest, subgraphs=tuple(silent)))
    with pytest.raises(ValueError, match="`stem` has no predicted time"):
        step_times(bundle.manifest, PIXEL6)
    found = {entry.name: entry for entry in with_times(bundle, PIXEL6).subgraphs}
    for name in ("stem", "s1.gpu"):
        estimate = LatencyPredictor(PIXEL6).predict(open_onnx(bundle.file(f"{name}.onnx")).graph, found[name].processor, "fp32")
        assert found[name].predicted_ms == estimate.computing_ms
        assert found[name].contention == estimate.contended_ms / estimate.computing_ms >= 1
    assert [found[e.name] for e in silent if e.predicted_ms is not None] == [e for e in silent if e.predicted_ms is not None]


def test_only_subgraphs_that_are_whole_segments_are_slowed_by_other_inferences(bundle):
    factors = contention_factors(bundle, PIXEL6)
    assert factors.keys() == {"stem", "head"}
    for name, factor in factors.items():
        estimate = LatencyPredictor(PIXEL6).predict(open_onnx(bundle.file(f"{name}.onnx")).graph, "cpu", "fp32")
        assert factor == estimate.contended_ms / estimate.computing_ms >= 1
    assert step_times(bundle.manifest, PIXEL6, {"stem": 1.25})["stem"].contention == 1.25
    assert step_times(bundle.manifest, PIXEL6)["stem"].contention == 1
