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


OWN_MODEL = """
from torch import nn

from stretch.models.tiny import tiny_resnet


def make():
    return tiny_resnet()
"""

START = "import sys; sys.argv[0] = 'stretch'\nfrom stretch.cli import app\napp()"


def _own_data(tmp_path, classes):
    """A recipe with a model and images of one's own, everything beside it."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    for split, count in (("train", 24), ("val", 8)):
        for label in range(classes):
            folder = tmp_path / "photos" / split / f"kind{label}"
            folder.mkdir(parents=True)
            for number in range(count):
                Image.fromarray(rng.integers(0, 256, (20, 20, 3), np.uint8)).save(folder / f"{number}.png")
        hidden = tmp_path / "photos" / split / ".ipynb_checkpoints"
        hidden.mkdir()
        (hidden / "0-checkpoint.png").write_bytes(b"not an image")
    (tmp_path / "mine.py").write_text(OWN_MODEL)
    path = network(tmp_path)
    design = tmp_path / "d.toml"
    design.write_text(design.read_text().replace('model = "tiny_resnet"\n', ""))
    text = path.read_text().replace("tiny_resnet", "mine.py:make", 1).replace('weights = "none"\n', f"classes = {classes}\n")
    path.write_text(text.replace("[data]\n", '[data]\nname = "images"\npath = "photos"\nworkers = 0\n'))
    return path


@pytest.mark.slow
def test_two_processes_train_python_code_that_is_trusted(tmp_path):
    import subprocess
    import sys

    words = ["train", str(_own_data(tmp_path, 2)), "--gpus", "2", "--json", "--quiet", "--out", str(tmp_path / "run")]
    more = ["--set", "train.epochs=1", "--trust-code"]
    result = subprocess.run([sys.executable, "-c", START, *words, *more], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["metrics"]["processes"] == 2
