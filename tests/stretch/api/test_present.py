import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402 - torch may be missing

from predictors.errors import StretchError  # noqa: E402
from stretch.api.present import as_it_is, fingerprint  # noqa: E402
from stretch.transform import build  # noqa: E402
from tests.stretch.api import snapshot  # noqa: E402
from tests.stretch.designs import cpu_and  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture
def made(captured):
    """A tiny network in two branches, fresh for every test, and the original's graph."""
    original = captured("tiny_resnet")
    return build(original, cpu_and("gpu", original.graph, "project")), original.graph


def first_of(model, kind):
    """Name and module of the first layer of a kind."""
    return next((name, part) for name, part in model.named_modules() if isinstance(part, kind))


def swap(model, kind, new):
    """Put another layer in the place of the first of a kind; its name."""
    name, _ = first_of(model, kind)
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, new)
    return name


def test_network_is_copied_and_left_as_it_was(made):
    model, graph = made
    model.train().double()
    before, state = snapshot.of_module(model), snapshot.of_random_state()
    copied = as_it_is(model, graph)
    assert snapshot.of_module(model) == before
    assert snapshot.of_random_state() == state
    assert not copied.training
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.allclose(copied(x), model.eval()(x.double()).float(), atol=1e-5)


def test_layer_of_another_kind_is_refused_by_name(made):
    model, graph = made
    name = swap(model, nn.ReLU, nn.GELU())
    with pytest.raises(StretchError, match=rf"`{name}` is GELU, it was ReLU"):
        as_it_is(model, graph)


def test_weights_of_another_shape_are_refused_by_name(made):
    model, graph = made
    name = swap(model, nn.Linear, nn.Linear(64, 3))
    with pytest.raises(StretchError, match=rf"`{name}.weight` is 3×64, it was 10×64"):
        as_it_is(model, graph)


def test_network_within_another_module_is_refused(made):
    model, graph = made
    with pytest.raises(StretchError, match="the network is Sequential, no longer the BranchedModel"):
        as_it_is(nn.Sequential(model), graph)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weight_that_is_not_finite_is_named(made, value):
    model, graph = made
    name, conv = first_of(model, nn.Conv2d)
    with torch.no_grad():
        conv.weight[0, 0, 0, 0] = value
    with pytest.raises(StretchError, match=rf"`{name}.weight` is not finite"):
        as_it_is(model, graph)


def test_fingerprint_changes_with_any_weight_or_statistic_and_back(made):
    model, _ = made
    built = fingerprint(model)
    seen = {built}
    for _, kind, key in [
        (0, nn.Conv2d, "weight"),
        (1, nn.BatchNorm2d, "running_mean"),
        (2, nn.BatchNorm2d, "bias"),
        (3, nn.Linear, "bias"),
    ]:
        tensor = getattr(first_of(model, kind)[1], key).data.view(-1)
        before = tensor[-1].clone()
        tensor[-1] += 1e-3
        seen.add(fingerprint(model))
        tensor[-1] = before
    assert len(seen) == 5
    assert fingerprint(model) == built
