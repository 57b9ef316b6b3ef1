import msgspec
import numpy as np
import pytest

from predictors.errors import StretchError
from scheduler.bundle.load import load_bundle
from scheduler.bundle.tflite_file import METADATA, check_belongs, load_tflite, parse_tflite
from stretch.export.tflite.bundle import write_tflite
from tests.scheduler.bundles import two_branches
from tests.scheduler.delegates import graphs
from tests.scheduler.tflite_files import changed, small_source


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return small_source(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def content(source):
    return graphs.tflite_bytes(source.graph, source)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return load_bundle(two_branches(tmp_path_factory.mktemp("bundle") / "bundle"))


@pytest.fixture(scope="module")
def whole(bundle):
    return write_tflite(bundle)


def test_signatures_are_the_subgraphs_and_joins_of_the_bundle_in_nhwc(bundle, whole, tmp_path):
    (tmp_path / "m.tflite").write_bytes(whole)
    file = load_tflite(tmp_path / "m.tflite")
    manifest = bundle.manifest
    shapes = {t.name: t.shape for t in manifest.tensors}
    for sub in manifest.subgraphs:
        inputs, outputs = file.ends(sub.name)
        assert list(inputs) == [sub.input]
        n, c, h, w = shapes[sub.input]
        assert inputs[sub.input] == (n, h, w, c)
        assert list(outputs) == [sub.output]
    for join in manifest.joins:
        assert tuple(file.ends(join.name)[0]) == join.inputs
    check_belongs(file, manifest)
    assert {t.layout for t in file.plan.tensors} == {"NHWC", "NC"}


def test_join_is_a_concatenation_of_channels_without_transpositions(whole, tmp_path):
    file = parse_tflite(whole, tmp_path)
    assert [code for _, code in file.operators("s1.join")] == ["CONCATENATION"]
    assert [code for _, code in file.operators("s2.join")] == ["ADD"]
    assert not any(code == "TRANSPOSE" for step in ("stem", "s1.cpu", "s1.gpu", "head") for _, code in file.operators(step))


def test_unknown_signature_is_named_with_those_there_are(whole, tmp_path):
    with pytest.raises(StretchError, match="has no signature `s9`") as error:
        parse_tflite(whole, tmp_path).ends("s9")
    assert "s1.gpu" in error.value.hint


def test_file_without_a_plan_is_one_clear_sentence(content, tmp_path):
    with pytest.raises(StretchError, match="has no plan in its metadata") as error:
        parse_tflite(changed(content, lambda model: model.pop("metadata")), tmp_path / "m.tflite")
    assert "stretch export" in error.value.hint


def test_plan_that_is_damaged_newer_or_of_other_steps_is_refused(source, tmp_path):
    plan = graphs.plan_of(source.graph)
    with pytest.raises(StretchError, match="is damaged"):
        parse_tflite(changed(graphs.tflite_bytes(source.graph, source), _spoil_plan), tmp_path)
    with pytest.raises(StretchError, match="has schema 99"):
        parse_tflite(graphs.tflite_bytes(source.graph, source, msgspec.structs.replace(plan, schema=99)), tmp_path)
    with pytest.raises(StretchError, match="are not the subgraphs and joins of its plan"):
        parse_tflite(graphs.tflite_bytes(source.graph, source, graphs.plan_of(source.graph, "other")), tmp_path)
    tensors = tuple(msgspec.structs.replace(t, shape=(1, 4, 4, 3)) if t.name == "x" else t for t in plan.tensors)
    with pytest.raises(StretchError, match="does not have the tensors that its plan states"):
        parse_tflite(graphs.tflite_bytes(source.graph, source, msgspec.structs.replace(plan, tensors=tensors)), tmp_path)


def _spoil_plan(model):
    entry = next(item for item in model["metadata"] if item["name"] == METADATA)
    model["buffers"][entry["buffer"]] = {"data": np.frombuffer(b"{}", np.uint8)}


def test_file_of_another_bundle_is_refused(whole, bundle, tmp_path):
    other = load_bundle(two_branches(tmp_path / "other", processors=("cpu", "dsp")))
    with pytest.raises(StretchError, match="written for another bundle"):
        check_belongs(parse_tflite(whole, tmp_path), other.manifest)
