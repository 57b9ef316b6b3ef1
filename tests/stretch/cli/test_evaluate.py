"""`stretch evaluate`: accuracy and agreement, compared with the same files on ONNX Runtime."""

import json
import sys

import numpy as np
import pytest

from stretch.export.quantize.images import fingerprint
from tests import onnx_runtime
from tests.scheduler.checks.test_verify import change_weight
from tests.stretch.cli.commands import call, spawn


def folders(path, classes, per_class=2):
    rng = np.random.default_rng(1)
    for i in range(classes):
        (path / f"{i}").mkdir(parents=True)
        np.save(path / f"{i}" / "some.npy", rng.standard_normal((per_class, 3, 8, 8)).astype(np.float32))
    return path


def test_accuracy_and_agreement_equal_those_of_the_files(succeeds, bundle_dir, tmp_path):
    change_weight(bundle_dir, "controls/original.onnx", -1, "stem.w")
    data, _ = succeeds("evaluate", bundle_dir, "--images", folders(tmp_path / "i", 5, 6), "--json")
    images, truth = np.concatenate([np.load(file) for file in sorted((tmp_path / "i").rglob("*.npy"))])[:, None], np.repeat(range(5), 6)
    branched, original = (
        np.concatenate([onnx_runtime.output(bundle_dir / file, x) for x in images]).argmax(1)
        for file in ("model.onnx", "controls/original.onnx")
    )
    shares = {"top1": (branched == truth).mean(), "agreement": (branched == original).mean()}
    assert {name: data[name]["value"] for name in shares} == pytest.approx(shares)
    assert data["original"]["top1"]["value"] == pytest.approx((original == truth).mean()) != pytest.approx(shares["top1"])
    assert all(data[name]["low"] <= share <= data[name]["high"] for name, share in shares.items())
    assert data["images"] | {"path": ""} == {"path": "", "files": 5, "count": 30, "labels": "folders", "classes": 5}


def test_images_without_labels_give_only_the_agreement_with_a_note(stretch, bundle_dir, tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((7, 3, 8, 8)).astype(np.float32))
    code, data, err = stretch("evaluate", bundle_dir, "--images", tmp_path, "--json")
    assert (code, data["top1"], data["images"]["labels"], data["agreement"]["value"]) == (0, None, "none", 1.0)
    assert "no labels: agreement only" in stretch("evaluate", bundle_dir, "--images", tmp_path)[1] + err


def test_images_of_one_class_give_no_agreement_and_calibration_images_give_a_warning(stretch, bundles, bundle_dir, tmp_path):
    similar = np.ones((5, 3, 8, 8), np.float32) * np.linspace(1, 1.001, 5, dtype=np.float32)[:, None, None, None]
    np.save(tmp_path / "x.npy", similar)
    bundles.edit(bundle_dir, lambda m: m.update(calibrated_on=[fingerprint(image[None]) for image in similar[:3]]))
    code, data, err = stretch("evaluate", bundle_dir, "--images", tmp_path, "--json")
    assert (code, data["agreement"], data["original_classes"], data["calibrated_on"]) == (0, None, 1, 3)
    assert data["error"] < 1e-5
    assert "the original answers one class for 5 images" in err
    assert "3 of the 5 images were used to calibrate this bundle" in err
    out = stretch("evaluate", bundle_dir, "--images", tmp_path)[1]
    assert "95 % interval" not in out
    assert "error of the scores" in out


def test_bundle_without_controls_has_only_accuracy_with_a_reason(stretch, bundles, bundle_dir, tmp_path):
    bundles.edit(bundle_dir, lambda m: m.update(controls={}, control_macs={}))
    code, data, err = stretch("evaluate", bundle_dir, "--images", folders(tmp_path / "i", 5), "--json")
    assert (code, data["agreement"], data["original"]) == (0, None, None)
    assert data["top1"]["images"] == 10
    assert "written without controls" in err
    assert len(data["warnings"]) == 1


def test_network_without_class_scores_is_refused(capsys, bundles, tmp_path):
    path = bundles.two_branches(tmp_path / "b", batch=2)
    done = call(capsys, "evaluate", path, "--images", folders(tmp_path / "i", 5))
    assert done.code == 1
    assert "no list of class scores" in done.message


def test_pictures_without_pillow_end_with_the_install_line(capsys, bundle_dir, tmp_path, monkeypatch):
    (tmp_path / "a.png").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "PIL", None)
    done = call(capsys, "evaluate", bundle_dir, "--images", tmp_path)
    assert done.code == 5
    assert "needs Pillow" in done.message
    assert "pip install pillow" in done.hint


def test_base_install_evaluates_arrays_without_torch(bundle_dir, tmp_path):
    done = spawn(
        "import sys; sys.modules['torch'] = sys.modules['PIL'] = None",
        *("evaluate", bundle_dir, "--images", folders(tmp_path / "i", 5), "--json"),
    )
    assert done.code == 0, done.err
    assert json.loads(done.out)["agreement"]["value"] == 1.0
