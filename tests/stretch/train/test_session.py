"""A run: its folder, checkpoints and log, resuming, training without labels, and extraction of networks."""

import csv
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save

from predictors.errors import StretchError, UsageError
from scheduler.bundle.load import load_bundle
from scheduler.runtime.session import Session
from stretch.evaluation.agreement import compare
from stretch.network.models.tiny import tiny_resnet
from stretch.stages.design import read_design
from stretch.train.distributed import World
from stretch.train.extract import DESIGN, extract, open_run
from stretch.train.folder import BEST, LAST, ORIGINAL, Log, RunFolder, checkpoint_state, load_checkpoint, save_checkpoint
from stretch.train.images import ImageSet, synthetic
from stretch.train.loop import Diverged, Epoch, Run
from stretch.train.prepare import check_recipe, prepare
from stretch.train.recipe import KeepConfig, Recipe, SandwichConfig, TrainConfig, load_recipe
from stretch.train.session import RunWriter, kept_weights, make_run, train_recipe
from stretch.train.supernet import Supernet
from stretch.transform.model import BranchedModel
from tests.contracts.repository import ROOT
from tests.stretch.train.recipes import network, supernet
from tests.stretch.train.supernets import pool
from tests.stretch.train.test_images import pictures


def go(path, out, *changes, **options):
    return train_recipe(load_recipe(path, changes), path.parent, out, **options)


def model_of(run, extracted):
    """Return the network of the extracted weights and design."""
    job, _ = open_run(run)
    design = read_design(extracted.checkpoint.with_name(DESIGN), job.captured.graph, job.profile)
    model = BranchedModel(job.captured.graph, design).eval()
    model.load_state_dict(load_file(extracted.checkpoint))
    return model


def test_run_leaves_weights_log_designs_and_the_newest_checkpoints(tmp_path):
    result, run = go(network(tmp_path), tmp_path / "run"), tmp_path / "run"
    kept = {f"checkpoints/step-{n:05d}-0000000.safetensors" for n in (2, 3)} | {
        f"{name}.safetensors" for name in ("best", "last", "original")
    }
    files = {str(p.relative_to(run)) for p in run.rglob("*") if p.is_file()}
    assert files == {"recipe.toml", "run.json", "log.csv", "designs/000.toml"} | kept
    assert (len((run / "log.csv").read_text().splitlines()), result.metrics["epochs"]) == (4, 3)
    assert result.metrics["images_per_second"] > 0 < result.metrics["memory_mib"]
    assert any("CPU" in warning for warning in result.warnings) or torch.cuda.is_available()


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
    path, design = network(tmp_path), tmp_path / "d.toml"
    go(path, tmp_path / "run", "train.epochs=1")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("x")
    other = design.read_text().replace("depth = 2", "depth = 3")
    for text, folder, epochs, resume, reason in (
        (design.read_text(), "run", 1, False, "there is a run"),
        (design.read_text(), "run", 2, True, "another recipe"),
        (other, "run", 1, True, "another design"),
        (other, "other", 1, False, "holds something else"),
    ):
        design.write_text(text)
        with pytest.raises(StretchError, match=reason):
            go(path, tmp_path / folder, f"train.epochs={epochs}", resume=resume)


@pytest.mark.slow
@pytest.mark.parametrize("make", [network, supernet])
def test_run_killed_in_an_epoch_resumes_to_the_same_weights(tmp_path, make):
    """A real process is killed once a checkpoint within an epoch exists; this process resumes the run."""
    path, changes = make(tmp_path), ("train.epochs=4", "keep.steps=1", "keep.last=50")
    code = "import torch; torch.set_num_threads(1)\nfrom stretch.cli import app\napp()"
    arguments = ["train", path, "--quiet", *(word for change in changes for word in ("--set", change)), "--out", tmp_path / "cut"]
    cut = subprocess.Popen([sys.executable, "-P", "-c", code, *map(str, arguments)], cwd=ROOT, env=os.environ, stdout=subprocess.DEVNULL)
    while cut.poll() is None and not list((tmp_path / "cut").glob("checkpoints/step-00001-0000002*")):
        time.sleep(0.02)
    assert cut.poll() is None, "the run was over before it could be killed"
    cut.send_signal(signal.SIGKILL)
    cut.wait()
    assert not (tmp_path / "cut" / "last.safetensors").exists()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        go(path, tmp_path / "cut", *changes, resume=True)
        go(path, tmp_path / "whole", *changes)
    finally:
        torch.set_num_threads(threads)
    one, two = (load_file(tmp_path / name / "last.safetensors") for name in ("whole", "cut"))
    assert one.keys() == two.keys()
    for name, value in one.items():
        assert torch.equal(value, two[name]), name


def test_rotation_keeps_the_newest_checkpoints_and_damaged_ones_are_skipped(tmp_path):
    folder = RunFolder(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    for epoch, steps in ((1, 0), (2, 0), (2, 5), (10, 0)):
        folder.checkpoint(epoch, steps).write_bytes(b"damaged")
    folder.rotate(2)
    assert (folder.checkpoints(), folder.newest()) == ([folder.checkpoint(2, 5), folder.checkpoint(10, 0)], None)


def test_log_of_a_resumed_run_has_every_epoch_once(tmp_path):
    rows = [Epoch(n, 1.0 / n, 0.5, 2.0) for n in (1, 2, 3)]
    log, again = (Log(RunFolder(tmp_path), False) for _ in range(2))
    for row in rows:
        log.add(row, rate=0.1)
    again.restart(rows[:2])
    again.add(rows[2], rate=0.1)
    with (tmp_path / "log.csv").open(newline="") as file:
        assert [row["epoch"] for row in csv.DictReader(file)] == ["1", "2", "3"]


def test_run_is_restored_from_its_folder_and_a_new_run_clears_the_folder(captured, tmp_path):
    folder, recipe = RunFolder(tmp_path / "run"), Recipe(model="tiny_resnet", device="mi9")
    assert not folder.exists
    original = captured("tiny_resnet")
    designs = pool(original.graph)
    folder.start(recipe, original, designs, {"model": "x"})
    assert folder.recipe() == recipe
    restored = folder.original()
    assert (restored.graph, restored.tensors.keys()) == (original.graph, original.tensors.keys())
    assert all(torch.equal(tensor, restored.tensors[name]) for name, tensor in original.tensors.items())
    name = next(iter(original.tensors))
    for damaged in (b"x" * 100, save({**restored.tensors, name: torch.zeros(2)}, {"graph": original.graph.to_json().decode()})):
        (folder.path / ORIGINAL).write_bytes(damaged)
        with pytest.raises(StretchError, match=ORIGINAL):
            folder.original()
    assert [p.name for p in folder.designs()] == ["000.toml", "001.toml", "002.toml"]
    Log(folder, False).add(Epoch(1, 1.0, 0.5, 2.0))
    folder.start(recipe, original, designs[:1], {"model": "y"})
    assert [p.name for p in folder.designs()] == ["000.toml"]
    assert not (folder.path / "log.csv").exists()


@pytest.mark.slow
def test_opened_run_has_the_designs_and_weights_it_was_trained_with(tmp_path):
    run = go(supernet(tmp_path), tmp_path / "run", "train.epochs=1").run
    for name in ("a.toml", "b.toml", "supernet.toml"):  # only the folder of the run is needed
        (tmp_path / name).unlink()
    ready, weights = open_run(run)
    assert [d.segments[2].branches[0].depth for d in ready.designs] == [1, 2]
    assert "flat" in weights
    (run / "best.safetensors").unlink()
    with pytest.raises(StretchError, match="no weights yet"):
        open_run(run)


OWN = {"recipe": "a", "design": "b"}
PLAIN = TrainConfig(epochs=2, batch=16, learning_rate=0.05)
CONFIGS = {"sgd": PLAIN, "adamw": TrainConfig(epochs=2, batch=16, optimizer="adamw", learning_rate=1e-3, ema=0.9, clip=1.0, accumulate=2)}


def network_run(config):
    torch.manual_seed(0)
    return Run(tiny_resnet(), synthetic(4, 16, 64), config)


def supernet_run(captured):
    torch.manual_seed(0)
    supernet = Supernet(captured("tiny_resnet"), pool(captured("tiny_resnet").graph)[:2])
    return Run(supernet.train(), synthetic(4, 16, 32), PLAIN, sandwich=SandwichConfig(random=1))


def finish(run):
    for _ in run.steps():
        pass
    weights = {k: v.clone() for k, v in run.model.state_dict().items()}
    return weights | (run.step.mean.mean if run.step.mean else {}), [(e.loss, e.accuracy) for e in run.history]


@pytest.mark.parametrize(
    ("kind", "steps"), [("sgd", 5), *(pytest.param(k, s, marks=pytest.mark.slow) for k in ("sgd", "adamw", "supernet") for s in (1, 4, 6))]
)
def test_resumed_run_ends_bit_for_bit_like_an_uninterrupted_one(captured, tmp_path, kind, steps):
    make = (lambda: supernet_run(captured)) if kind == "supernet" else (lambda: network_run(CONFIGS[kind]))
    steps = min(steps, 3) if kind == "supernet" else steps
    whole = finish(make())
    first = make()
    for _, _ in zip(range(steps), first.steps(), strict=False):
        pass
    save_checkpoint(tmp_path / "c.safetensors", first, OWN, 0.5)
    torch.manual_seed(99)
    second = make()
    torch.rand(3)
    assert load_checkpoint(tmp_path / "c.safetensors", second, OWN).best == 0.5
    weights, rows = finish(second)
    assert rows == whole[1]
    for name, value in whole[0].items():
        assert torch.equal(value, weights[name]), name


def test_damaged_checkpoint_or_one_of_another_recipe_design_or_process_count_is_refused(tmp_path):
    run, path = network_run(PLAIN), tmp_path / "c.safetensors"
    save_checkpoint(path, run, OWN, None)
    for field in OWN:
        with pytest.raises(StretchError, match=f"another {field}"):
            load_checkpoint(path, run, OWN | {field: "x"})
    run.world = World(0, 2)
    with pytest.raises(StretchError, match="1 processes, this one has 2"):
        load_checkpoint(path, run, OWN)
    for damage in (b"", b"x" * 100):
        path.write_bytes(damage)
        with pytest.raises(StretchError, match="no whole checkpoint"):
            checkpoint_state(path)


def test_best_weights_are_of_the_most_accurate_epoch_and_last_weights_of_the_final_one(tmp_path):
    path = network(tmp_path)
    recipe = load_recipe(path, ("train.epochs=2", "train.amp=none", "train.graph=false"))
    ready = prepare(recipe, path.parent)
    folder = RunFolder(tmp_path / "run")
    folder.start(recipe, ready.captured, ready.designs, ready.identity)
    run = make_run(ready, ready.images(), World())
    # the best accuracy starts at 2.0, which no epoch reaches
    keeper = RunWriter(folder, run, KeepConfig(tensorboard=False, steps=1), ready.identity, 2.0)
    for row in run.steps():
        keeper.stepped() if row is None else keeper.finished(row)
    keeper.ended()
    keeper.log.close()
    assert not (folder.path / BEST).exists()
    assert keeper.best == 2.0
    last = load_file(folder.path / LAST)
    assert all(torch.equal(value, last[name]) for name, value in kept_weights(run).items())
    assert (folder.path / "log.csv").read_text().count("\n") == 3
    assert folder.newest() is not None


NONE = ("data.labels=none", "train.distill=1")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (("train.distill_kind=weighted",), "train.distill_kind = weighted needs labels"),
        (("train.label_smoothing=0.1",), "train.label_smoothing needs labels"),
        (("classes=7",), "a last layer of 7 new classes needs labels"),
        (("train.distill=0",), "only the original to learn from"),
    ],
)
def test_option_that_needs_labels_is_refused_before_anything_is_loaded(tmp_path, changes, reason):
    with pytest.raises(UsageError, match=reason):
        go(network(tmp_path), tmp_path / "run", *NONE, *changes, "model=nothing_like_that")
    check_recipe(load_recipe(network(tmp_path), changes))


def test_training_without_labels_ignores_the_labels_of_the_data(tmp_path):
    """Without labels, other labels in the data give the same weights; with labels they do not."""

    def weights(labels, *changes):
        recipe = load_recipe(network(tmp_path), ("train.epochs=1", "train.distill=0.5", *changes))
        images = torch.randint(0, 256, (32, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
        data = ImageSet(images, labels)
        run = make_run(prepare(recipe, tmp_path), (data, data), World())
        (row,) = [row for row in run.steps() if row is not None]
        return torch.cat([p.detach().flatten() for p in run.model.parameters()]), row

    ones, others = torch.ones(32, dtype=torch.int64), torch.arange(32) % 10
    (first, row), (second, _) = (weights(labels, "data.labels=none") for labels in (ones, others))
    assert torch.equal(first, second)
    assert row.accuracy is None
    assert 0 <= row.agreement <= 1
    assert not torch.equal(weights(ones)[0], weights(others)[0])


@pytest.mark.slow
def test_run_without_labels_learns_to_agree_and_its_bundle_states_the_agreement(tmp_path):
    rng = np.random.default_rng(0)
    pictures(tmp_path / "images", *(f"{number % 3}/{number}.png" for number in range(96)))
    changes = (*NONE, "data.name=images", f"data.path={tmp_path / 'images'}", "data.workers=0", "data.held_back=0.25", "start=calibrate")
    result = go(network(tmp_path), tmp_path / "run", *changes, "train.epochs=2")
    assert result.metrics["accuracy"] is None
    assert 0 <= result.metrics["agreement"] <= result.metrics["best_agreement"] <= 1
    rows = (tmp_path / "run" / "log.csv").read_text().splitlines()
    assert rows[0].endswith(",agreement")
    assert float(rows[-1].rpartition(",")[2]) == result.metrics["agreement"]
    extracted = extract(tmp_path / "run", tmp_path / "out", controls=False)
    assert extracted.accuracy is None
    ready, _ = open_run(tmp_path / "run")
    _, held_back = ready.images()
    assert len(held_back) == 24
    manifest = load_bundle(extracted.bundle).manifest
    assert manifest.agreement == extracted.agreement
    assert (extracted.agreement.images, extracted.agreement.bundle.images) == (24, 24)
    images = torch.from_numpy(rng.standard_normal((8, 3, 16, 16)).astype(np.float32))
    agreement, _ = compare(model_of(tmp_path / "run", extracted), ready.captured, [images])
    assert agreement.images == 8
    assert json.loads((tmp_path / "out" / "bundle" / "bundle.json").read_bytes())["agreement"]["bundle"]["source"] == "measured"


@pytest.mark.slow
def test_extracted_subnet_has_the_accuracy_it_had_in_the_supernet(tmp_path):
    run = go(supernet(tmp_path), tmp_path / "run", "train.epochs=1").run
    extracted = extract(run, tmp_path / "out", design=tmp_path / "b.toml", bundle=False)
    assert extracted.accuracy.extracted == extracted.accuracy.supernet
    assert model_of(run, extracted).design.segments[2].branches[0].depth == 2


@pytest.mark.slow
def test_bands_of_a_trained_network_have_its_weights(tmp_path):
    """Trained in one piece, run in bands."""
    path = network(tmp_path)
    branches = 'branches = [{ processor = "cpu", rows = [0, 5] }, { processor = "gpu", rows = [5, 16] }]\n'
    (tmp_path / "d.toml").write_text(f'model = "tiny_resnet"\n[[segments]]\nname = "s1"\n{branches}')
    run = go(path, tmp_path / "run", "train.epochs=1").run
    extracted = extract(run, tmp_path / "out", controls=False)
    assert extracted.accuracy.extracted == extracted.accuracy.supernet
    model = model_of(run, extracted)
    upper, lower = (model.branch("s1", p).state_dict() for p in ("cpu", "gpu"))
    assert all(torch.equal(value, lower[name]) for name, value in upper.items())
    assert extracted.bundle is not None
    x = torch.randn(1, 3, 16, 16)
    with torch.no_grad(), Session(extracted.bundle) as session:
        torch.testing.assert_close(torch.from_numpy(session.run(x.numpy())), model(x), atol=1e-4, rtol=1e-4)
