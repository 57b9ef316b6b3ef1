import msgspec
import pytest

from scheduler.bundle.load import load_bundle
from scheduler.simulate.predicted import predicted_trace
from tests.predictors.specified import specified


@pytest.fixture
def manifest(bundle_dir):
    return load_bundle(bundle_dir).manifest


def spans(trace):
    return {span.name: span for span in trace.spans}


def test_branches_overlap_and_the_meeting_point_waits_for_the_slower(manifest):
    slow = tuple(msgspec.structs.replace(s, predicted_ms=5.0) if s.name == "s1.gpu" else s for s in manifest.subgraphs)
    found = spans(predicted_trace(msgspec.structs.replace(manifest, subgraphs=slow), specified("pixel6")))
    assert found["s1.cpu"].start_ns < found["s1.gpu"].end_ns
    assert found["s1.join"].start_ns == found["s1.gpu out"].end_ns > found["s1.cpu"].end_ns
    assert found["s1.gpu in"].end_ns == found["s1.gpu"].start_ns


def test_bundle_without_predicted_times_has_no_predicted_trace(manifest):
    unknown = tuple(msgspec.structs.replace(s, predicted_ms=None) if s.name == "head" else s for s in manifest.subgraphs)
    assert predicted_trace(msgspec.structs.replace(manifest, subgraphs=unknown), specified("pixel6")) is None
