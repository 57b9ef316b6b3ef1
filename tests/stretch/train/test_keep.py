"""What a keeper writes is what the run is."""

import pytest

torch = pytest.importorskip("torch")
from safetensors.torch import load_file  # noqa: E402 - torch may be missing

from stretch.train.distributed import World  # noqa: E402
from stretch.train.folder import BEST, LAST, RunFolder  # noqa: E402
from stretch.train.session import Keeper, kept_weights  # noqa: E402
from stretch.train.prepare import prepare  # noqa: E402
from stretch.train.recipe import KeepConfig, load_recipe  # noqa: E402
from stretch.train.session import make_run  # noqa: E402
from tests.stretch.train.recipes import network  # noqa: E402

pytestmark = pytest.mark.torch


def test_best_weights_are_those_of_the_most_accurate_epoch_and_the_last_those_at_the_end(tmp_path):
    path = network(tmp_path)
    recipe = load_recipe(path, ("train.epochs=2", "train.amp=none", "train.graph=false"))
    ready = prepare(recipe, path.parent)
    folder = RunFolder(tmp_path / "run")
    folder.start(recipe, ready.designs, ready.identity)
    run = make_run(ready, *ready.images(), World())
    # nothing is as accurate as what was there before
    keeper = Keeper(folder, run, KeepConfig(tensorboard=False, steps=1), ready.identity, 2.0)
    for row in run.steps():
        keeper.stepped() if row is None else keeper.finished(row)
    keeper.ended()
    keeper.close()
    assert not (folder.path / BEST).exists()
    assert keeper.best == 2.0
    last = load_file(folder.path / LAST)
    assert all(torch.equal(value, last[name]) for name, value in kept_weights(run).items())
    assert (folder.path / "log.csv").read_text().count("\n") == 3
    assert folder.newest() is not None
