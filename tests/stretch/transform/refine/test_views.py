import pytest

torch = pytest.importorskip("torch")

from stretch.transform.refine import run as module  # noqa: E402 - torch may be missing
from stretch.transform.refine.run import Views  # noqa: E402

pytestmark = pytest.mark.torch


def ramp(count=4, size=32):
    """Images whose two colours say where a pixel is; each image has another third one."""
    at = torch.linspace(-1, 1, size)
    where = torch.stack([at[None, :].expand(size, size), at[:, None].expand(size, size), torch.zeros(size, size)])
    return torch.stack([where + torch.tensor([0, 0, float(i)])[:, None, None] for i in range(count)])


@pytest.fixture
def plain(monkeypatch):
    """Crops and mirrors alone."""
    for name in ("BLENDED", "PASTED", "LIGHT"):
        monkeypatch.setattr(module, name, 0.0)


def test_views_are_windows_of_one_image_each_of_the_area_allowed(plain):
    drawn = Views(ramp()).draw(200)
    assert drawn.shape == (200, 3, 32, 32)
    across, down = (drawn[:, i].flatten(1) for i in (0, 1))
    area = (across.amax(1) - across.amin(1)) * (down.amax(1) - down.amin(1)) / 4
    assert area.min() > module.LEAST_AREA * 0.8
    assert area.max() <= 1
    assert area.std() > 0.1
    # one image each, of which every one comes up
    spread = drawn[:, 2].flatten(1)
    torch.testing.assert_close(spread.amax(1), spread.amin(1))
    assert set(spread[:, 0].round().tolist()) == {0, 1, 2, 3}
    # about half of them mirrored, none upside down
    mirrored = drawn[:, 0, 16, -1] < drawn[:, 0, 16, 0]
    assert 0.3 < mirrored.float().mean() < 0.7
    assert (drawn[:, 1, -1, 16] > drawn[:, 1, 0, 16]).all()


def test_some_views_have_a_rectangle_of_another(plain, monkeypatch):
    monkeypatch.setattr(module, "PASTED", 0.5)
    third = Views(ramp()).draw(200)[:, 2]
    own = torch.stack([each.flatten().round().mode().values for each in third])
    other = (third - own[:, None, None]).abs() > 1e-3
    # of views of the same image none shows
    some = other.flatten(1).any(1)
    assert 0.15 < some.float().mean() < 0.55
    # most of a view may be the other's: then the rectangle is what is left out
    for mask in other[some]:
        assert any(torch.equal(each, each.any(1)[:, None] & each.any(0)) for each in (mask, ~mask))


def test_some_views_are_blended_with_another(plain, monkeypatch):
    monkeypatch.setattr(module, "BLENDED", 0.5)
    third = Views(ramp()).draw(200)[:, 2, 16, 16]
    between = ((third - third.round()).abs() > 1e-3).float().mean()
    assert 0.1 < between < module.BLENDED + 0.1


def test_light_changes_by_the_deviation_of_the_images(plain, monkeypatch):
    monkeypatch.setattr(module, "LIGHT", 0.2)
    images = ramp() * 100
    lit = Views(images).draw(300)[:, 2, 16, 16]
    assert float((lit[:, None] - 100 * torch.arange(4)).abs().amin(1).std()) > 0.02 * float(images.std())


def test_same_seed_draws_the_same_views_and_leaves_the_global_generator_alone():
    state = torch.random.get_rng_state()
    first, second, other = (Views(ramp(), seed).draw(8) for seed in (1, 1, 2))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert torch.equal(torch.random.get_rng_state(), state)
