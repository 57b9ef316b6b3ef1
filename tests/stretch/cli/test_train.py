"""`stretch train`, `extract` and `refine`: from a recipe to weights, to a bundle, to a better one."""

import json
import shutil

import numpy as np
import pytest

from tests.stretch.cli.commands import call, succeed
from tests.stretch.train.recipes import network, supernet

pytest.importorskip("torch")


pytestmark = pytest.mark.torch


def test_unknown_recipe_key_and_value_end_with_their_exit_codes(capsys, tmp_path):
    assert call(capsys, "train", "resnet56_cifar11").code == 3
    path = network(tmp_path, "[tran]\n")
    result = call(capsys, "train", path)
    assert result.code == 2
    assert "did you mean `train`" in result.hint
    assert call(capsys, "train", network(tmp_path), "--set", "train.epochs=0").code == 2


@pytest.mark.slow
@pytest.mark.parametrize("make", [network, supernet])
def test_recipe_to_weights_to_bundle_to_execution(capsys, tmp_path, make):
    run = tmp_path / "run"
    trained = succeed(capsys, "train", make(tmp_path), "--out", run, "--json", "--quiet", "--set", "keep.tensorboard=true")
    assert json.loads(trained.out)["run"] == str(run)
    assert list((run / "tensorboard").iterdir())
    assert "export the run first" in call(capsys, "export", run, "--as", "tflite", "--out", tmp_path / "lite").hint
    taken = succeed(capsys, "export", run, "--out", tmp_path / "out", "--json", "--quiet", "--no-controls")
    accuracy = json.loads(taken.out)["accuracy"]
    assert accuracy["supernet"] == accuracy["extracted"]
    succeed(capsys, "run", tmp_path / "out" / "bundle", "--repeat", 2, "--warmup", 0, "--json", "--quiet")


@pytest.fixture
def bundle(tiny_bundle, tmp_path):
    (tmp_path / "images").mkdir()
    some = np.kron(2 * np.random.default_rng(0).standard_normal((40, 3, 2, 2)), np.ones((16, 16))).astype(np.float32)
    np.save(tmp_path / "images" / "some.npy", some)
    return shutil.copytree(tiny_bundle, tmp_path / "bundle")


def asked(bundle, *more):
    return ("train", bundle, "--images", bundle.parent / "images", "--image-count", 32, "--run-images", 2, *more)


def test_people_are_told_what_changed_and_where_the_bundle_is(capsys, bundle):
    result = succeed(capsys, *asked(bundle, "--steps", 2, "--out", bundle.parent / "new"))
    assert "2 steps in" in result.out
    assert "before, on 10 images held back" in result.out
    assert result.out.rstrip().endswith(f"stretch run {bundle.parent / 'new'}")
    assert call(capsys, "verify", bundle.parent / "new").code == 0
