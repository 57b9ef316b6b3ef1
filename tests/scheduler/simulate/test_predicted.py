import msgspec
import pytest

from predictors.errors import UnknownNameError
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


def test_transfers_are_left_out_where_a_processor_keeps_what_it_made(manifest):
    found = spans(predicted_trace(manifest, specified("pixel6")))
    assert not {name for name in found if name.startswith(("stem ", "s1.cpu ", "head "))}


def test_bundle_without_predicted_times_has_no_predicted_trace(manifest):
    unknown = tuple(msgspec.structs.replace(s, predicted_ms=None) if s.name == "head" else s for s in manifest.subgraphs)
    assert predicted_trace(msgspec.structs.replace(manifest, subgraphs=unknown), specified("pixel6")) is None


def test_processor_that_the_device_lacks_is_named(manifest):
    other = tuple(msgspec.structs.replace(s, processor="npu") if s.processor == "gpu" else s for s in manifest.subgraphs)
    with pytest.raises(UnknownNameError, match="npu"):
        predicted_trace(msgspec.structs.replace(manifest, subgraphs=other), specified("pixel6"))


def test_steps_of_several_tensors_start_when_the_last_is_there_and_each_is_handed_over(bundles, tmp_path):
    found = spans(predicted_trace(load_bundle(bundles.several_ends(tmp_path / "b")).manifest, specified("pixel6")))
    # l.cpu's tensor is there already; r.gpu's comes from the GPU, and so does what the GPU's head reads from the CPU.
    assert found["m.cpu in"].start_ns == max(found["l.cpu"].end_ns, found["r.gpu"].end_ns)
    assert found["h1.gpu in"].start_ns == found["m.cpu"].end_ns == found["h2.cpu"].start_ns
    assert "h2.cpu in" not in found
