import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.devices import load_device
from predictors.errors import UsageError
from scheduler.bundle.load import load_bundle
from stretch.phone.measure import family_of, graph_of, mask_of, places, works
from tests.scheduler.bundles import edit, two_branches

pytestmark = pytest.mark.torch


@pytest.fixture
def bundle(tmp_path):
    path = two_branches(tmp_path / "bundle", 1, ("cpu", "gpu", "dsp"))
    edit(path, lambda data: [sub.update(precision="int8") for sub in data["subgraphs"] if sub["processor"] == "dsp"])
    return load_bundle(path)


def test_each_signature_is_measured_on_what_computes_its_precision(bundle):
    found = works(bundle, places(load_device("mi9"), None, npu=True))
    pairs = {(work.signature, work.place.family, work.precision) for work in found}
    assert {each for each in pairs if each[0] == "s1.cpu"} == {("s1.cpu", "cpu", "fp32"), ("s1.cpu", "gpu", "fp16")}
    assert {each for each in pairs if each[0] == "s1.dsp"} == {("s1.dsp", "cpu", "int8"), ("s1.dsp", "dsp", "int8")}
    assert not any(signature.endswith("join") for signature, _, _ in pairs)


def test_without_its_libraries_no_npu_is_measured(bundle):
    assert {place.target for place in places(load_device("mi9"), None, npu=False)} == {"cpu", "gpu"}


def test_threads_of_the_cpu_are_its_cores():
    for core_set, threads in (("1large", 1), ("3med", 3), ("1large3med", 4)):
        assert next(place.threads for place in places(load_device("mi9"), core_set, npu=False) if place.target == "cpu") == threads
    with pytest.raises(UsageError, match="no core set `9huge`"):
        places(load_device("mi9"), "9huge", npu=False)


def test_the_branches_of_a_segment_are_relatives_and_each_is_a_network(bundle):
    found = works(bundle, places(load_device("mi9"), None, npu=False))
    assert {family_of(bundle, work) for work in found} == {"tiny:stem", "tiny:s1", "tiny:s2", "tiny:head"}
    graph = graph_of(bundle, found[0])
    assert graph.name == "tiny:stem"
    assert graph.inputs[0].shape == (1, 3, 8, 8)


@given(st.sets(st.integers(0, 63), min_size=1))
def test_a_mask_has_a_bit_for_each_core(cores):
    assert mask_of(",".join(map(str, sorted(cores)))) == sum(1 << core for core in cores)


def test_ranges_of_cores_are_masks_and_no_cores_are_none():
    assert (mask_of("4-6"), mask_of("0,7"), mask_of(None)) == (0x70, 0x81, 0)
    for text in ("", "a", "6-4", "4-", "64", "-1", "1,,2", "²"):
        with pytest.raises(UsageError, match="names no cores"):
            mask_of(text)
