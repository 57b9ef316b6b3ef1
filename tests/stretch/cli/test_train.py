import json

import pytest

from tests.stretch.cli.commands import call
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
    trained = call(capsys, "train", make(tmp_path), "--out", run, "--json", "--quiet", "--set", "keep.tensorboard=true")
    assert trained.code == 0, trained.out
    assert json.loads(trained.out)["run"] == str(run)
    assert list((run / "tensorboard").iterdir())
    taken = call(capsys, "extract", run, "--out", tmp_path / "out", "--json", "--quiet", "--no-controls")
    assert taken.code == 0, taken.out
    accuracy = json.loads(taken.out)["accuracy"]
    assert accuracy["supernet"] == accuracy["extracted"]
    ran = call(capsys, "run", tmp_path / "out" / "bundle", "--repeat", 2, "--warmup", 0, "--json", "--quiet")
    assert ran.code == 0, ran.out


@pytest.mark.slow
def test_two_processes_are_started_by_one_command(capsys, tmp_path):
    import subprocess
    import sys

    words = ["train", str(network(tmp_path)), "--gpus", "2", "--json", "--quiet", "--out", str(tmp_path / "run"), "--set", "train.epochs=1"]
    code = "import sys; sys.argv[0] = 'stretch'\nfrom stretch.cli import app\napp()"
    result = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["metrics"]["processes"] == 2
