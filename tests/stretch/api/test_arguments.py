import random

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402 - torch may be missing
from hypothesis import strategies as st  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.utils import prune  # noqa: E402

from predictors.errors import StretchError, UsageError  # noqa: E402
from stretch.api.arguments import copy_module, full_shape, random_state_kept  # noqa: E402
from tests.effort import examples  # noqa: E402
from tests.stretch.api import snapshot  # noqa: E402

pytestmark = pytest.mark.torch
SHAPE = (1, 3, 8, 8)


def small():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Sequential(nn.Conv2d(4, 2, 1), nn.Dropout(0.5)))


@pytest.mark.slow
@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_module_in_any_state_is_copied_and_left_as_it_was(data):
    module = small().to(data.draw(st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16])))
    for part in module.modules():
        part.training = data.draw(st.booleans())
    for parameter in module.parameters():
        parameter.requires_grad_(data.draw(st.booleans()))
        if data.draw(st.booleans()):
            parameter.grad = torch.ones_like(parameter)
    seen = []
    if data.draw(st.booleans()):
        module[0].register_forward_hook(lambda *call: seen.append(call))
    before = snapshot.of_module(module)
    copied = copy_module(module, SHAPE)
    assert snapshot.of_module(module) == before
    assert not any(part.training for part in copied.modules())
    assert {t.dtype for t in copied.state_dict().values() if t.is_floating_point()} == {torch.float32}
    for (name, current), (_, other) in zip(module.state_dict().items(), copied.state_dict().items(), strict=True):
        assert torch.equal(current.float(), other.float()), name
        assert current.data_ptr() != other.data_ptr()
    count = len(seen)
    copied(torch.zeros(SHAPE))
    assert len(seen) == count


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
@pytest.mark.parametrize("change", [lambda conv: prune.l1_unstructured(conv, "weight", 0.5), nn.utils.weight_norm])
def test_weights_that_a_hook_computes_are_copied_as_they_are(change):
    module = small()
    change(module[0])
    x = torch.randn(SHAPE)
    before = snapshot.of_module(module)
    with torch.no_grad():
        assert torch.equal(copy_module(module, SHAPE)(x), module.eval()(x))
    module.train()
    assert snapshot.of_module(module) == before


@pytest.mark.parametrize("place", [lambda m: m[3][0]])
def test_hook_that_changes_the_output_is_refused(place):
    module = small()
    place(module).register_forward_hook(lambda part, inputs, output: output + 1)
    with pytest.raises(StretchError, match="a hook of `Sequential` changes its output"):
        copy_module(module, SHAPE)


@pytest.mark.parametrize(
    ("module", "says"),
    [
        (lambda: small().to("meta"), r"`Sequential` has no weights: `0.weight` is on the device `meta`"),
        (lambda: nn.Sequential(nn.LazyConv2d(4, 3)), r"`Sequential` has no weights yet: `0.weight`"),
        (lambda: nn.Sequential(nn.Linear(2, 2, dtype=torch.complex64)), r"`Sequential` has complex weights: `0.weight`"),
    ],
    ids=["meta", "lazy", "complex"],
)
def test_weights_that_cannot_be_branched_are_named(module, says):
    with pytest.raises(StretchError, match=says):
        copy_module(module(), SHAPE)


@pytest.mark.parametrize("shape", [[3, 32, 48], torch.Size((1, 3, 32, 48)), np.array([3, 32, 48])])
def test_shape_may_leave_out_the_batch(shape):
    full = full_shape(shape)
    assert full == (1, 3, 32, 48)
    assert all(type(size) is int for size in full)


@pytest.mark.parametrize("shape", [(224, 224), (3, 0, 32), (3, 2.5, 32), "3x32x32"])
def test_shape_that_is_none_is_refused(shape):
    with pytest.raises(UsageError, match="is no shape of one image"):
        full_shape(shape)


@pytest.mark.parametrize("error", [None, ValueError])
def test_random_state_is_what_it_was_even_after_an_error(error):
    def draw():
        return random.random(), np.random.rand(), torch.rand(1).item()  # noqa: NPY002 - the global generator is meant

    before = snapshot.of_random_state()
    try:
        with random_state_kept():
            torch.manual_seed(3)
            first = draw()
            if error:
                raise error
    except ValueError:
        pass
    assert snapshot.of_random_state() == before
    assert draw() != first
