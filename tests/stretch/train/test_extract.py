import pytest

torch = pytest.importorskip("torch")
from safetensors.torch import load_file  # noqa: E402 - torch may be missing

from scheduler.runtime.session import Session  # noqa: E402
from stretch.train.extract import extract  # noqa: E402
from stretch.train.recipe import load_recipe  # noqa: E402
from stretch.train.session import train_recipe  # noqa: E402
from tests.stretch.train.recipes import network, supernet  # noqa: E402

pytestmark = pytest.mark.torch


def trained(tmp_path, make):
    path = make(tmp_path)
    return train_recipe(load_recipe(path, ("train.epochs=1",)), path.parent, tmp_path / "run").run


@pytest.mark.slow
def test_subnet_taken_out_has_the_accuracy_it_had_inside(tmp_path):
    run = trained(tmp_path, supernet)
    done = extract(run, tmp_path / "out", design=tmp_path / "b.toml", bundle=False)
    assert done.extracted == done.inside
    assert done.design.segments[2].branches[0].depth == 2
    weights = load_file(done.checkpoint)
    assert weights.keys() == done.model.state_dict().keys()


@pytest.mark.slow
def test_bands_of_a_trained_network_have_its_weights(tmp_path):
    """Trained in one piece, run in bands."""

    def bands(folder):
        path = network(folder)
        text = 'model = "tiny_resnet"\n[[segments]]\nname = "s1"\nbranches = [{ processor = "cpu", rows = [0, 5] }, { processor = "gpu", rows = [5, 16] }]\n'
        (folder / "d.toml").write_text(text)
        return path

    done = extract(trained(tmp_path, bands), tmp_path / "out", controls=False)
    assert done.extracted == done.inside
    upper, lower = (done.model.branch("s1", p).state_dict() for p in ("cpu", "gpu"))
    assert all(torch.equal(value, lower[name]) for name, value in upper.items())
    assert done.bundle is not None
    x = torch.randn(1, 3, 16, 16)
    with torch.no_grad(), Session(done.bundle) as session:
        torch.testing.assert_close(torch.from_numpy(session.run(x.numpy())), done.model(x), atol=1e-4, rtol=1e-4)
