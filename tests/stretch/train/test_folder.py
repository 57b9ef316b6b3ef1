import csv

import pytest

torch = pytest.importorskip("torch")

from predictors.errors import StretchError  # noqa: E402 - torch may be missing
from stretch.train.folder import Log, RunFolder  # noqa: E402
from stretch.train.loop import Epoch  # noqa: E402
from stretch.train.recipe import Recipe  # noqa: E402
from tests.stretch.train.supernets import pool  # noqa: E402

pytestmark = pytest.mark.torch


def test_folder_gives_back_what_the_run_is(captured, tmp_path):
    folder, recipe = RunFolder(tmp_path / "run"), Recipe(model="tiny_resnet", device="mi9")
    assert not folder.exists
    folder.start(recipe, pool(captured("tiny_resnet").graph), {"model": "x"})
    assert folder.recipe() == recipe
    assert folder.facts() == {"model": "x"}
    assert [p.name for p in folder.designs()] == ["000.toml", "001.toml", "002.toml"]


def test_rotation_keeps_the_newest_and_damaged_ones_are_passed_over(tmp_path):
    folder = RunFolder(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    for epoch, done in ((1, 0), (2, 0), (2, 5), (10, 0)):
        folder.checkpoint(epoch, done).write_bytes(b"damaged")
    folder.rotate(2)
    assert folder.checkpoints() == [folder.checkpoint(2, 5), folder.checkpoint(10, 0)]
    assert folder.newest() is None


def test_log_of_a_resumed_run_has_every_epoch_once(tmp_path):
    folder = RunFolder(tmp_path)
    rows = [Epoch(n, 1.0 / n, 0.5, 2.0) for n in (1, 2, 3)]
    log = Log(folder, False)
    for row in rows:
        log.add(row, rate=0.1)
    again = Log(folder, False)
    again.restart(rows[:2])
    again.add(rows[2], rate=0.1)
    with (tmp_path / "log.csv").open(newline="") as file:
        assert [row["epoch"] for row in csv.DictReader(file)] == ["1", "2", "3"]


def test_log_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "log.csv").symlink_to("/dev/full")
    with pytest.raises(StretchError, match=r"cannot write .*log\.csv: No space left") as error:
        Log(RunFolder(tmp_path), False).add(Epoch(1, 1.0, 0.5, 2.0))
    assert "--resume" in error.value.hint


def test_run_begun_anew_has_nothing_of_the_one_before(captured, tmp_path):
    folder, recipe = RunFolder(tmp_path / "run"), Recipe(model="tiny_resnet", device="mi9")
    designs = pool(captured("tiny_resnet").graph)
    folder.start(recipe, designs, {"model": "x"})
    Log(folder, False).add(Epoch(1, 1.0, 0.5, 2.0))
    folder.start(recipe, designs[:1], {"model": "y"})
    assert [p.name for p in folder.designs()] == ["000.toml"]
    assert folder.facts() == {"model": "y"}
    assert not (folder.path / "log.csv").exists()
