"""The experiment at a tiny size: every state of a design is measured once, and a second call goes on where the first ended."""

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from experiments.calibration import planned  # noqa: E402 - torch may be missing

pytestmark = pytest.mark.torch

#: One stage in two branches, one of half the depth.
DESIGN = """model = "{name}"
[[segments]]
name = "s2"
join = "project"
branches = [{{ processor = "cpu", depth = 1 }}, {{ processor = "gpu", depth = 2 }}]
"""


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """The experiment's network, designs and images in small; gives the images' file."""
    monkeypatch.setattr(planned, "WIDTHS", (8, 16))
    monkeypatch.setattr(planned, "DESIGNS", tmp_path)
    monkeypatch.setattr(planned, "IMAGES", 32)
    monkeypatch.setattr(planned, "BATCH", 16)
    monkeypatch.setattr(planned, "CASES", planned.CASES[:1])
    planned.CASES[0].file.write_text(DESIGN.format(name=planned.NAME))
    rng = np.random.default_rng(0)
    images = {f"{part}_images": rng.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8) for part, count in (("train", 48), ("test", 16))}
    labels = {f"{part}_labels": rng.integers(0, 10, count) for part, count in (("train", 48), ("test", 16))}
    np.savez(tmp_path / "cifar.npz", **images, **labels)
    return tmp_path / "cifar.npz"


@pytest.mark.slow
def test_every_state_is_measured_once_and_a_second_call_finds_nothing_left(tiny, tmp_path):
    def run():
        work = planned.Seed(0, tiny, tmp_path / "out", planned.Epochs(1, 1, 1))
        planned.job(work, until=60.0)
        return json.loads((tmp_path / "out" / "planned-0.json").read_text())

    first = run()
    assert [row["state"] for row in first["rows"]] == ["original", *planned.STATES]
    assert all(0 <= row["accuracy"] <= 1 for row in first["rows"])
    assert (first["images"], first["epochs"]) == (48, {"original": 1, "unlabelled": 1, "labelled": 1})
    assert run()["rows"] == first["rows"]
    assert planned.Seed(0, tiny, tmp_path / "out", planned.Epochs(1, 1, 1)).trained(planned.CASES[0]).is_file()
