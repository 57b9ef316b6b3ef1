import pytest

torch = pytest.importorskip("torch")

from predictors.errors import StretchError  # noqa: E402 - torch may be missing
from stretch.train.finished import open_run  # noqa: E402
from stretch.train.recipe import load_recipe  # noqa: E402
from stretch.train.session import train_recipe  # noqa: E402
from tests.stretch.train.recipes import supernet  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.mark.slow
def test_opened_run_has_the_designs_and_weights_it_was_trained_with(tmp_path):
    path = supernet(tmp_path)
    run = train_recipe(load_recipe(path, ("train.epochs=1",)), tmp_path, tmp_path / "run").run
    for name in ("a.toml", "b.toml", "supernet.toml"):  # the folder of the run is enough
        (tmp_path / name).unlink()
    found = open_run(run)
    assert [d.segments[2].branches[0].depth for d in found.ready.designs] == [1, 2]
    assert "flat" in found.weights
    (run / "best.safetensors").unlink()
    with pytest.raises(StretchError, match="no weights yet"):
        open_run(run)
