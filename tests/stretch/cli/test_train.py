import contextlib
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


@pytest.mark.slow
def test_failure_of_two_processes_is_one_sentence_and_no_traceback(tmp_path):
    import subprocess
    import sys

    words = ["train", str(network(tmp_path)), "--gpus", "2", "--json", "--out", str(tmp_path / "run"), "--set", "data.name=images"]
    code = "import sys; sys.argv[0] = 'stretch'\nfrom stretch.cli import app\napp()"
    result = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "need a folder" in json.loads(result.stdout)["error"]
    assert result.stderr == "starting 2 processes\n"


@pytest.mark.slow
def test_designs_of_a_supernet_are_ranked_and_planned_with(capsys, tmp_path):
    path = supernet(tmp_path)
    for name, width in {"a": 16, "b": 32}.items():
        own = tmp_path / f"{name}.toml"
        own.write_text(own.read_text().replace('processor = "cpu", depth', f'processor = "cpu", width = {width}, align = 4, depth'))
    wide = (
        "--set",
        "supernet.macs=[0.5, 1.6]",
        "--set",
        "data.count=512",
        "--set",
        "train.learning_rate=0.02",
        "--set",
        "train.epochs=1",
        "--set",
        "train.batch=64",
    )
    assert call(capsys, "train", path, "--out", tmp_path / "run", "--quiet", *wide).code == 0
    taken = call(capsys, "extract", tmp_path / "run", "--rank", 12, "--no-export", "--json", "--quiet")
    assert taken.code == 0, taken.out
    ranking = json.loads(taken.out)["ranking"]
    assert ranking["designs"] == 12
    request = ("branch", "tiny_resnet", "--device", "mi9", "--weights", "none", "--input", "3x16x16", "--dry-run", "--json", "--quiet")
    free = (
        "--alpha",
        50,
        "--beta",
        50,
        "--balance",
        0.001,
        "--segment-macs",
        0.1,
        "--macs",
        "0.5:1.6",
        "--processors",
        "cpu,gpu",
        "--merge",
        "never",
    )
    planned = call(capsys, *request, *free, "--accuracy", ranking["file"])
    if planned.code:  # the design may branch a segment that the supernet left whole
        assert "does not know the segment" in planned.out
    else:
        assert json.loads(planned.out)["accuracy"]["rank_correlation"] == ranking["rank_correlation"]


def _rank(run, number):
    """Process id of one of the processes that torchrun started for a run."""
    from pathlib import Path

    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            variables = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if str(run).encode() in words and f"LOCAL_RANK={number}".encode() in variables:
            return int(folder.name)
    return None


@pytest.mark.slow
def test_killed_process_ends_the_others_and_the_run_goes_on_afterwards(capsys, tmp_path):
    import os
    import signal
    import subprocess
    import sys

    run = tmp_path / "run"
    words = ["train", str(network(tmp_path)), "--gpus", "2", "--quiet", "--out", str(run), "--set", "train.epochs=20"]
    code = "import sys; sys.argv[0] = 'stretch'\nfrom stretch.cli import app\napp()"
    process = subprocess.Popen([sys.executable, "-c", code, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    log = run / "log.csv"
    while process.poll() is None and (not log.is_file() or len(log.read_text().splitlines()) < 3):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.1)
    victim = _rank(run, 1)
    assert victim is not None
    os.kill(victim, signal.SIGKILL)
    process.communicate(timeout=120)
    assert process.returncode != 0
    done = len(log.read_text().splitlines()) - 1
    assert done < 20
    result = subprocess.run([sys.executable, "-c", code, *words, "--resume", "--json"], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["metrics"]["epochs"] == 20


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


def _train_until_killed(words, log, rows):
    """Start a training run, and kill it once its log has this many rows."""
    import subprocess
    import sys

    process = subprocess.Popen([sys.executable, "-c", START, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and (not log.is_file() or len(log.read_text().splitlines()) <= rows):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.05)
    process.kill()
    process.wait()
    return process.returncode


@pytest.mark.slow
def test_own_model_and_images_with_other_classes_are_trained_killed_resumed_extracted_and_run(capsys, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    path = _own_data(tmp_path, 3)
    monkeypatch.chdir(tmp_path / "elsewhere")
    run, out = tmp_path / "run", tmp_path / "out"
    words = ["train", str(path), "--out", str(run), "--quiet", "--set", "train.epochs=40"]
    assert _train_until_killed([*words, "--trust-code"], run / "log.csv", 2) == -9
    refused = call(capsys, *words, "--resume")
    assert refused.code == 2
    assert "--trust-code" in refused.hint
    resumed = call(capsys, *words, "--trust-code", "--resume", "--json")
    assert resumed.code == 0, resumed.out
    assert json.loads(resumed.out)["metrics"]["epochs"] == 40
    refused = call(capsys, "extract", run, "--out", out)
    assert refused.code == 2
    assert "--trust-code" in refused.hint
    assert not out.exists()
    taken = call(capsys, "extract", run, "--out", out, "--trust-code", "--json", "--quiet")
    assert taken.code == 0, taken.out
    accuracy = json.loads(taken.out)["accuracy"]
    assert accuracy["supernet"] == accuracy["extracted"]
    for priority in ("latency", "energy"):
        ran = call(capsys, "run", out / "bundle", "--priority", priority, "--repeat", 1, "--warmup", 0, "--json", "--quiet")
        assert ran.code == 0, ran.out


@pytest.mark.slow
def test_two_processes_train_python_code_that_is_trusted(tmp_path):
    import subprocess
    import sys

    words = ["train", str(_own_data(tmp_path, 2)), "--gpus", "2", "--json", "--quiet", "--out", str(tmp_path / "run")]
    more = ["--set", "train.epochs=1", "--trust-code"]
    result = subprocess.run([sys.executable, "-c", START, *words, *more], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["metrics"]["processes"] == 2
