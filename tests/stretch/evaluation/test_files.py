"""A bundle's files as they are planned to run, against `stretch export` and a session of its own, and against torch."""

import msgspec
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from predictors.errors import UsageError
from scheduler.bundle.load import load_bundle
from scheduler.runtime.sequential import Sequential
from scheduler.runtime.session import Session
from stretch.evaluation.files import measure_files
from stretch.export.precision import export_precision
from stretch.quantize.images import synthetic_images
from tests.scheduler.bundles import two_branches

IMAGES = synthetic_images((1, 3, 8, 8), 30)
FITTED, OTHERS = IMAGES[:16], IMAGES[16:]


def planned(folder, precision):
    """A bundle whose plan assumes a precision for each processor."""
    two_branches(folder, processors=tuple(precision))
    bundle = load_bundle(folder)
    entries = tuple(msgspec.structs.replace(s, planned_precision=precision[s.processor]) for s in bundle.manifest.subgraphs)
    (folder / "bundle.json").write_bytes(msgspec.json.encode(msgspec.structs.replace(bundle.manifest, subgraphs=entries)))
    return load_bundle(folder)


@pytest.mark.slow
@pytest.mark.parametrize("precision", [{"cpu": "int8", "gpu": "fp16"}])
def test_what_is_measured_is_what_the_exported_bundle_gives(tmp_path, precision):
    bundle = planned(tmp_path / "b", precision)
    original = Sequential(bundle.file(bundle.manifest.whole)).run
    found = measure_files(bundle, lambda x: original(x) + 1, FITTED, OTHERS).agreement
    assert found.precisions == {name: (own,) for name, own in precision.items()}
    assert found.delegates == dict.fromkeys(precision, "cpu")
    if set(precision.values()) != {"fp32"}:
        export_precision(bundle, tmp_path / "lower", precision, FITTED, "synthetic", min_cosine=0.5)
        bundle = load_bundle(tmp_path / "lower")
    with Session(bundle, dict.fromkeys(precision, "cpu0")) as session:
        got = [session.run(x) for x in OTHERS]
    want = [original(x) + 1 for x in OTHERS]
    assert found.images == len(OTHERS)
    assert found.value == np.mean([a.argmax() == b.argmax() for a, b in zip(got, want, strict=True)])
    difference = np.linalg.norm(np.stack(got) - np.stack(want)) / np.linalg.norm(want)
    assert found.error == pytest.approx(difference, rel=1e-3)


@pytest.mark.slow
def test_bundle_itself_is_left_as_it_was_and_time_bounds_the_images(tmp_path):
    bundle = planned(tmp_path / "b", {"cpu": "int8", "gpu": "fp16"})
    before = {file: file.read_bytes() for file in (tmp_path / "b").rglob("*") if file.is_file()}
    found = measure_files(bundle, Sequential(bundle.file(bundle.manifest.whole)).run, FITTED, OTHERS, seconds=0.0)
    assert (found.agreement.images, found.left, found.kept) == (1, len(OTHERS) - 1, {})
    assert before == {file: file.read_bytes() for file in (tmp_path / "b").rglob("*") if file.is_file()}


def test_subgraph_that_has_no_such_form_is_run_in_fp32_and_named(tmp_path):
    bundle = planned(tmp_path / "b", {"cpu": "fp16", "gpu": "fp32"})
    large = next(sub for sub in bundle.manifest.subgraphs if sub.processor == "cpu")
    model = onnx.load(bundle.file(large.file))
    weight = next(tensor for tensor in model.graph.initializer if len(tensor.dims) == 4)
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * np.float32(1e7), weight.name))
    onnx.save(model, bundle.file(large.file))
    found = measure_files(bundle, Sequential(bundle.file(bundle.manifest.whole)).run, FITTED, OTHERS)
    assert found.kept.keys() == {large.name}
    assert "which fp16 does not hold" in found.kept[large.name]
    assert found.agreement.precisions["cpu"] == ("fp16", "fp32")


def test_mapping_that_computes_nothing_or_names_no_processor_is_refused(tmp_path):
    bundle = planned(tmp_path / "b", {"cpu": "int8", "gpu": "fp16"})
    original = Sequential(bundle.file(bundle.manifest.whole)).run
    with pytest.raises(UsageError, match="computes nothing"):
        measure_files(bundle, original, FITTED, OTHERS, {"gpu": "null"})
    with pytest.raises(UsageError, match="`dsp` is mapped, but the bundle does not use it"):
        measure_files(bundle, original, FITTED, OTHERS, {"dsp": "cpu"})
