import os
import signal
import subprocess
import sys
import time

import pytest

torch = pytest.importorskip("torch")
from safetensors.torch import load_file  # noqa: E402 - torch may be missing

from predictors.errors import StretchError  # noqa: E402
from stretch.train.loop import Diverged  # noqa: E402
from stretch.train.recipe import load_recipe  # noqa: E402
from stretch.train.session import train_recipe  # noqa: E402
from tests.contracts.repository import ROOT  # noqa: E402
from tests.stretch.train.recipes import network, supernet  # noqa: E402

pytestmark = pytest.mark.torch


def go(path, out, *changes, **options):
    return train_recipe(load_recipe(path, changes), path.parent, out, **options)


def test_run_leaves_weights_log_designs_and_the_newest_checkpoints(tmp_path):
    done = go(network(tmp_path), tmp_path / "run")
    names = {str(p.relative_to(tmp_path / "run")) for p in (tmp_path / "run").rglob("*") if p.is_file()}
    kept = {f"checkpoints/step-{n:05d}-0000000.safetensors" for n in (2, 3)}
    assert names == {"recipe.toml", "run.json", "log.csv", "best.safetensors", "last.safetensors", "designs/000.toml"} | kept
    rows = (tmp_path / "run" / "log.csv").read_text().splitlines()
    assert len(rows) == 4
    assert done.metrics["epochs"] == 3
    assert done.metrics["images_per_second"] > 0
    assert done.metrics["memory_mib"] > 0
    assert any("CPU" in warning for warning in done.warnings) or torch.cuda.is_available()


@pytest.mark.slow
def test_diverged_run_stops_with_the_step_and_keeps_its_last_good_checkpoint(tmp_path):
    path = network(tmp_path)
    with pytest.raises(Diverged, match=r"epoch \d \(step \d+\)") as error:
        go(path, tmp_path / "run", "train.learning_rate=1e6", "train.warmup_epochs=3", "train.epochs=6", "train.augment=none")
    saved = sorted((tmp_path / "run" / "checkpoints").iterdir()) if (tmp_path / "run" / "checkpoints").exists() else []
    for file in saved:
        assert all(bool(value.isfinite().all()) for name, value in load_file(file).items() if name.startswith("model."))
    assert not saved or str(saved[-1]) in error.value.hint


@pytest.mark.slow
def test_run_is_neither_overwritten_nor_mixed_with_another(tmp_path):
    path = network(tmp_path)
    go(path, tmp_path / "run", "train.epochs=1")
    with pytest.raises(StretchError, match="there is a run"):
        go(path, tmp_path / "run")
    with pytest.raises(StretchError, match="another recipe"):
        go(path, tmp_path / "run", "train.epochs=2", resume=True)
    (tmp_path / "d.toml").write_text((tmp_path / "d.toml").read_text().replace("depth = 2", "depth = 3"))
    with pytest.raises(StretchError, match="another design"):
        go(path, tmp_path / "run", "train.epochs=1", resume=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("x")
    with pytest.raises(StretchError, match="holds something else"):
        go(path, tmp_path / "other")


@pytest.mark.parametrize(
    ("change", "reason"), [("data.name=cifar10", "need a folder"), ("model=os:abort", "Python code that would be executed")]
)
def test_recipe_without_data_or_with_code_is_refused(tmp_path, change, reason):
    with pytest.raises(StretchError, match=reason):
        go(network(tmp_path), tmp_path / "run", change)


@pytest.mark.slow
def test_own_number_of_classes_makes_the_last_layer_anew(tmp_path):
    done = go(network(tmp_path), tmp_path / "run", "classes=3", "train.epochs=1")
    assert load_file(done.checkpoint)["head.on_cpu.fc.weight"].shape[0] == 3


@pytest.mark.slow
@pytest.mark.parametrize("make", [network, supernet])
def test_run_killed_in_an_epoch_goes_on_to_the_same_weights(tmp_path, make):
    """A real process, ended by SIGKILL as soon as a checkpoint within an epoch is there."""
    path = make(tmp_path)
    words = ["train", str(path), "--quiet", "--set", "train.epochs=4", "--set", "keep.steps=1", "--set", "keep.last=50"]

    def start(out, *more):
        code = "import torch; torch.set_num_threads(1)\nfrom stretch.cli import app\napp()"
        return subprocess.Popen(
            [sys.executable, "-P", "-c", code, *words, "--out", str(out), *more], cwd=ROOT, env=os.environ, stdout=subprocess.DEVNULL
        )

    whole = start(tmp_path / "whole")
    cut = start(tmp_path / "cut")
    while cut.poll() is None and not list((tmp_path / "cut").glob("checkpoints/step-00001-0000002*")):
        time.sleep(0.02)
    assert cut.poll() is None, "the run was over before it could be killed"
    cut.send_signal(signal.SIGKILL)
    cut.wait()
    assert not (tmp_path / "cut" / "last.safetensors").exists()
    assert start(tmp_path / "cut", "--resume").wait(300) == 0
    assert whole.wait(300) == 0
    one, two = (load_file(tmp_path / name / "last.safetensors") for name in ("whole", "cut"))
    assert one.keys() == two.keys()
    for name, value in one.items():
        assert torch.equal(value, two[name]), name
