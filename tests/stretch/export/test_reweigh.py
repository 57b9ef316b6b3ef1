"""A bundle with other weights computes with these, and is otherwise what it was."""

import json

import msgspec
import numpy as np
import pytest
import torch

from scheduler.bundle.agreement import Agreement
from scheduler.bundle.load import load_bundle, read_bundle
from scheduler.bundle.manifest import WeightsInfo
from scheduler.checks.verify import verify_bundle
from scheduler.runtime.session import Session
from stretch.export.bundle import BundleFacts, export_bundle
from stretch.export.reweigh import export_reweighed
from stretch.transform import build
from tests.stretch.cli.commands import tree
from tests.stretch.designs import cpu_and, identity_design

TRAINED = WeightsInfo("trained", "otherwise")
AGREEMENT = Agreement(value=0.5, low=0.2, high=0.8, top5_overlap=None, error=0.1, images=4)


@pytest.fixture
def made(captured, tmp_path):
    """A bundle, its original, and a network of its design with other weights."""
    result = captured("tiny_resnet")
    design = cpu_and("gpu", result.graph, "project")
    facts = BundleFacts("mi9", False, "random", ranges={"s1.cpu": {"x": (0.5, 3)}})
    export_bundle(tmp_path / "b", result, build(result, design), build(result, identity_design(result.graph)), facts, "0.1.0")
    model = build(result, design)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.05)
    return load_bundle(tmp_path / "b", check_hashes=True), result, model


@pytest.mark.slow
def test_new_bundle_computes_with_the_new_weights_and_keeps_all_else(made, tmp_path):
    bundle, result, model = made
    seen = []
    manifest = export_reweighed(
        bundle, tmp_path / "new", result, model, TRAINED, agreeing=lambda files: seen.append(files.manifest.files) or AGREEMENT
    )
    again = load_bundle(tmp_path / "new", check_hashes=True)
    assert msgspec.json.encode(again.manifest) == msgspec.json.encode(manifest)
    assert seen == [manifest.files]
    assert (manifest.agreement, manifest.weights) == (AGREEMENT, TRAINED)
    assert not list(verify_bundle(tmp_path / "new").problems)
    x = torch.randn(result.graph.input.shape)
    with torch.inference_mode():
        want = model(x).numpy()
    with Session(again) as session:
        assert np.abs(session.run(x.numpy()) - want).max() <= 1e-4 * np.abs(want).max()
    before = bundle.manifest
    for key in ("design", "predicted", "controls", "control_macs", "tensors", "joins", "subgraphs", "model", "recommended"):
        assert getattr(manifest, key) == getattr(before, key), key
    for control in before.controls.values():
        assert again.file(control).read_bytes() == bundle.file(control).read_bytes()
    assert manifest.checks["errors"].keys() == before.checks["errors"].keys()
    assert manifest.checks["max_error"] <= manifest.checks["tolerance"]
    assert manifest.checks["sample"] != before.checks["sample"]
    # what int8 was trained with was of the old weights
    assert b"stretch.ranges" in bundle.file("subgraphs/s1.cpu.onnx").read_bytes()
    assert b"stretch.ranges" not in again.file("subgraphs/s1.cpu.onnx").read_bytes()


def test_failure_before_the_end_leaves_what_was_there(made):
    bundle, result, model = made
    before = tree(bundle.path.parent)

    def fails(files):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_reweighed(bundle, bundle.path, result, model, TRAINED, agreeing=fails)
    assert tree(bundle.path.parent) == before


@pytest.mark.slow
def test_files_made_of_the_float_ones_are_left_out(made, tmp_path):
    bundle, result, model = made
    (bundle.path / "model.tflite").write_bytes(b"of the old weights")
    text = json.loads((bundle.path / "bundle.json").read_text())
    text["tflite"] = "model.tflite"
    text["files"]["model.tflite"] = {"bytes": 18, "sha256": "0" * 64}
    text["checks"]["tflite"] = {"max_error": 0.0}
    (bundle.path / "bundle.json").write_text(json.dumps(text))
    manifest = export_reweighed(read_bundle(bundle.path), tmp_path / "new", result, model, TRAINED, agreeing=lambda files: None)
    assert manifest.tflite is None
    assert "tflite" not in manifest.checks
    assert not (tmp_path / "new" / "model.tflite").exists()
