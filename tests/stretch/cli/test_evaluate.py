"""`stretch evaluate`: accuracy and agreement, against the torch networks themselves."""

import json
import sys

import numpy as np
import pytest

from stretch.export.quantize.images import fingerprint
from tests.stretch.cli.commands import call, spawn


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Six pictures of four colours in each of ten class folders: networks with random weights separate them better than noise."""
    image = pytest.importorskip("PIL.Image")
    folder = tmp_path_factory.mktemp("pictures") / "labelled"
    rng = np.random.default_rng(0)
    for name in "abcdefghij":
        (folder / name).mkdir(parents=True)
        for i in range(6):
            colours = rng.integers(0, 256, (2, 2, 3), np.uint8)
            image.fromarray(np.kron(colours, np.ones((16, 16, 1), np.uint8))).save(folder / name / f"{i}.png")
    return folder


@pytest.fixture(scope="module")
def branched(tmp_path_factory):
    """A bundle and the two torch networks in it."""
    pytest.importorskip("torch")
    from stretch.api import branch
    from stretch.network.models.load import load_model
    from stretch.planning.config import PlanConfig

    out = tmp_path_factory.mktemp("evaluate") / "bundle"
    built = branch("tiny_resnet", "pixel6", out=out, weights="none", config=PlanConfig(alpha=100))
    return out, built.model, load_model("tiny_resnet", weights="none").module.eval()


def scores(module, pictures):
    """Output of a torch network for every picture, uncropped, and its class."""
    import torch
    from PIL import Image
    from torchvision import transforms

    prepare = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))])
    files = sorted(pictures.rglob("*.png"))
    with torch.inference_mode():
        values = [module(prepare(Image.open(file))[None])[0].numpy() for file in files]
    return np.stack(values), np.array(["abcdefghij".index(file.parent.name) for file in files])


@pytest.mark.slow
@pytest.mark.torch
def test_every_share_is_that_of_the_torch_networks(succeeds, branched, pictures):
    stats = pytest.importorskip("scipy.stats")
    bundle, model, original = branched
    data, _ = succeeds("evaluate", bundle, "--images", pictures, "--set", "preprocessing.crop=1", "--json")
    mine, truth = scores(model, pictures)
    theirs, _ = scores(original, pictures)
    best, other = (np.argsort(value)[:, ::-1][:, :5] for value in (mine, theirs))
    right = {"top1": mine.argmax(1) == truth, "top5": (best == truth[:, None]).any(1), "agreement": mine.argmax(1) == theirs.argmax(1)}
    for name, result in right.items():
        interval = stats.binomtest(int(result.sum()), len(truth)).proportion_ci(method="wilson")
        assert data[name]["value"] == pytest.approx(result.mean())
        assert (data[name]["low"], data[name]["high"]) == pytest.approx((interval.low, interval.high))
    assert data["original"]["top1"]["value"] == pytest.approx((theirs.argmax(1) == truth).mean())
    assert data["top5_overlap"]["value"] == pytest.approx(np.mean([len({*a} & {*b}) / 5 for a, b in zip(best, other, strict=True)]))
    assert data["images"] | {"path": ""} == {"path": "", "files": 60, "count": 60, "labels": "folders", "classes": 10}
    assert 0 < right["agreement"].mean() < 1


def folders(path, classes, per_class=2):
    rng = np.random.default_rng(1)
    for i in range(classes):
        (path / f"{i}").mkdir(parents=True)
        np.save(path / f"{i}" / "some.npy", rng.standard_normal((per_class, 3, 8, 8)).astype(np.float32))
    return path


def test_images_without_labels_give_the_agreement_and_say_so(stretch, bundle_dir, tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((7, 3, 8, 8)).astype(np.float32))
    code, data, err = stretch("evaluate", bundle_dir, "--images", tmp_path, "--json")
    assert (code, data["top1"], data["images"]["labels"], data["agreement"]["value"]) == (0, None, "none", 1.0)
    assert "no labels: agreement only" in stretch("evaluate", bundle_dir, "--images", tmp_path)[1] + err


def test_images_with_one_answer_give_no_agreement_and_images_that_calibrated_the_bundle_are_told(stretch, bundles, bundle_dir, tmp_path):
    alike = np.ones((5, 3, 8, 8), np.float32) * np.linspace(1, 1.001, 5, dtype=np.float32)[:, None, None, None]
    np.save(tmp_path / "x.npy", alike)
    bundles.edit(bundle_dir, lambda m: m.update(calibrated_on=[fingerprint(image[None]) for image in alike[:3]]))
    code, data, err = stretch("evaluate", bundle_dir, "--images", tmp_path, "--json")
    assert (code, data["agreement"], data["original_classes"], data["calibrated_on"]) == (0, None, 1, 3)
    assert data["error"] < 1e-5
    assert "the original answers one class for 5 images" in err
    assert "3 of the 5 images were used to calibrate this bundle" in err
    out = stretch("evaluate", bundle_dir, "--images", tmp_path)[1]
    assert "same best class" not in out
    assert "error of the scores" in out


def test_bundle_without_controls_has_accuracy_alone_and_says_why(stretch, bundles, bundle_dir, tmp_path):
    bundles.edit(bundle_dir, lambda m: m.update(controls={}, control_macs={}))
    code, data, err = stretch("evaluate", bundle_dir, "--images", folders(tmp_path / "i", 5), "--json")
    assert (code, data["agreement"], data["original"]) == (0, None, None)
    assert data["top1"]["images"] == 10
    assert "written without controls" in err
    assert len(data["warnings"]) == 1


def test_network_that_gives_no_class_scores_is_refused(capsys, bundles, tmp_path):
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
