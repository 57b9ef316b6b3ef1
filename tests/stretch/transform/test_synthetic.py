"""Synthetic images of a network: closer to its training images than noise, of its classes, bounded, and cached."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from predictors.errors import StretchError
from scheduler.bundle.preprocessing import IMAGENET
from stretch.network.capture import capture
from stretch.transform.synthetic import Synthesis, synthesise
from tests.stretch.interrupts import Interrupt

SHAPE = (1, 3, 16, 16)
HOW = Synthesis(12, steps=60, batch=6)


def network(norm=nn.BatchNorm2d):
    """Train a network to separate horizontal stripes, vertical stripes and both."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3, padding=1), norm(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), norm(8), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))
    optimiser = torch.optim.Adam(model.parameters(), 0.02)
    across = torch.sin(2 * torch.arange(16.0)).expand(16, 16)
    stripes = torch.stack([across, across.T, across + across.T])
    for _ in range(60):
        classes = torch.arange(48) % 3
        images = stripes[classes][:, None] + 0.3 * torch.randn(48, 3, 16, 16)
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(images), classes).backward()
        optimiser.step()
    return model.eval()


def distance(model, x):
    """Return the distance of the first batch norm's statistics from those of some images."""
    with torch.no_grad():
        seen = model[0](x)
    return float((seen.mean((0, 2, 3)) - model[1].running_mean).norm() + (seen.var((0, 2, 3)) - model[1].running_var).norm())


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def images_of(model):
    """Return the captured model and the batches synthesised from it."""
    captured = capture(model, SHAPE, "net")
    return captured, synthesise(captured, IMAGENET, HOW)


def images_by_class(model, images):
    """Return the number of images per predicted class."""
    with torch.no_grad():
        return model(images).argmax(1).bincount(minlength=3).tolist()


@pytest.fixture
def synthesised():
    model = network()
    return model, *images_of(model)


def test_images_fit_statistics_and_classes_better_than_noise_and_stay_within_pixels(synthesised):
    model, _, batches = synthesised
    images = torch.cat(batches)
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(1))
    assert images.shape == (12, *SHAPE[1:])
    assert distance(model, images) < 0.7 * distance(model, noise)
    low, high = ((level - torch.tensor(IMAGENET.mean)) / torch.tensor(IMAGENET.std) for level in (0, 1))
    assert (images.amin((0, 2, 3)) >= low - 1e-5).all()
    assert (images.amax((0, 2, 3)) <= high + 1e-5).all()
    assert images_by_class(model, images) == [4, 4, 4]


def test_images_reach_their_classes_with_large_activations():
    model = network()
    with torch.no_grad():
        model[3].weight.mul_(1000)
        model[3].bias.mul_(1000)
        model[4].running_mean.mul_(1000)
        model[4].running_var.mul_(1000**2)
    assert images_by_class(model, torch.cat(images_of(model)[1])) == [4, 4, 4]


def test_network_with_a_fixed_input_size_gets_images():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 8 * 8, 3)).eval()
    assert images_by_class(model, torch.cat(images_of(model)[1])) == [4, 4, 4]


def test_images_are_cached_and_more_images_add_batches(synthesised):
    _, captured, batches = synthesised
    again = synthesise(captured, IMAGENET, HOW, Interrupt(1))
    assert torch.equal(torch.cat(again), torch.cat(batches))
    with pytest.raises(KeyboardInterrupt):
        synthesise(captured, IMAGENET, replace(HOW, count=20), Interrupt(2))
    # the third batch was kept, the fourth is still to be made
    extended = torch.cat(synthesise(captured, IMAGENET, replace(HOW, count=20), Interrupt(2)))
    assert len(extended) == 20
    assert torch.equal(extended[:12], torch.cat(batches))
    assert not torch.equal(extended[12:18], extended[:6])
    other = torch.cat(synthesise(captured, IMAGENET, replace(HOW, count=6, seed=1)))
    assert not torch.equal(other, extended[:6])


def test_a_network_without_statistics_or_class_scores_is_refused():
    captured = capture(network(lambda channels: nn.GroupNorm(1, channels)), SHAPE, "net")
    with pytest.raises(StretchError, match="batch-norms"):
        synthesise(captured, IMAGENET, HOW)
    picture = capture(nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)).eval(), SHAPE, "net")
    with pytest.raises(StretchError, match="class scores"):
        synthesise(picture, IMAGENET, HOW)
