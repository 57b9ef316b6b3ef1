"""`stretch train`, `extract` and `refine`: from a recipe to weights, to a bundle, to a better one."""

import json
import shutil

import numpy as np
import pytest

from tests.stretch.cli.commands import call, tree
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


@pytest.mark.parametrize(("count", "reason"), [(12, "nothing to rank"), (3, "too few")])
def test_run_that_cannot_be_ranked_is_refused_before_anything_is_written(capsys, tmp_path, count, reason):
    (tmp_path / "recipe.toml").write_text('model = "tiny_resnet"\ndevice = "mi9"\n')
    result = call(capsys, "extract", tmp_path, "--rank", count)
    assert result.code == 1
    assert reason in result.message
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.toml"]


@pytest.fixture
def bundle(tiny_bundle, tmp_path):
    (tmp_path / "images").mkdir()
    some = np.kron(2 * np.random.default_rng(0).standard_normal((40, 3, 2, 2)), np.ones((16, 16))).astype(np.float32)
    np.save(tmp_path / "images" / "some.npy", some)
    return shutil.copytree(tiny_bundle, tmp_path / "bundle")


def asked(bundle, *more):
    return ("refine", bundle, "--images", bundle.parent / "images", "--image-count", 32, "--run-images", 2, *more)


def test_people_are_told_what_changed_and_where_the_bundle_is(capsys, bundle):
    result = call(capsys, *asked(bundle, "--steps", 2, "--out", bundle.parent / "new"))
    assert result.code == 0, result.err
    assert "2 steps in" in result.out
    assert "before, on 10 images held back" in result.out
    assert result.out.rstrip().endswith(f"stretch run {bundle.parent / 'new'}")
    assert call(capsys, "verify", bundle.parent / "new").code == 0


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [(("--minutes", "0"), 2, "--minutes 0 is no time to refine for"), (("--steps", "0"), 2, "steps")],
)
def test_wrong_words_are_refused_and_nothing_is_left(capsys, bundle, words, code, why):
    before = tree(bundle.parent)
    result = call(capsys, *asked(bundle, *words))
    assert result.code == code
    assert why in result.message
    assert tree(bundle.parent) == before
