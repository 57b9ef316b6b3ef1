"""A run tells its listener of every step and every epoch, in their order."""

import pytest

pytest.importorskip("torch")

from stretch.train.listen import Listener
from stretch.train.recipe import load_recipe
from stretch.train.session import train_recipe
from tests.stretch.train.recipes import network

pytestmark = [pytest.mark.torch, pytest.mark.slow]


class Witness(Listener):
    """Writes down what it is told."""

    def __init__(self):
        self.told = []

    def stepped(self, run):
        self.told.append((run.epoch, run.done))

    def finished(self, row):
        self.told.append(f"epoch {row.epoch}")


def test_steps_are_told_before_the_epoch_that_they_end(tmp_path):
    path, witness = network(tmp_path), Witness()
    train_recipe(load_recipe(path, ("train.epochs=2",)), path.parent, tmp_path / "run", listener=witness)
    epochs = [each for each in witness.told if isinstance(each, str)]
    assert epochs == ["epoch 1", "epoch 2"]
    steps = witness.told.index("epoch 1")
    assert steps >= 1
    assert len(witness.told) == 2 * (steps + 1)
    assert witness.told[-1] == "epoch 2"
