import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402 - torch may be missing

from predictors.errors import StretchError, UsageError  # noqa: E402
from stretch.capture.hooks import check_hooks, hooks_of  # noqa: E402
from stretch.capture.trace import capture_traced as capture  # noqa: E402

pytestmark = pytest.mark.torch
SHAPE = (1, 3, 8, 8)

PLACES = {"network": lambda net: net, "layer": lambda net: net[0], "layer within": lambda net: net[1][0]}
places = pytest.mark.parametrize("place", PLACES.values(), ids=PLACES.keys())


@pytest.fixture
def net():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential(nn.ReLU(), nn.Conv2d(4, 2, 1))).eval()


@places
@pytest.mark.parametrize("kind", ["forward", "forward_pre"])
def test_network_whose_hook_changes_its_output_is_not_captured(net, place, kind):
    change = {"forward": lambda part, inputs, output: output + 1, "forward_pre": lambda part, inputs: (inputs[0] + 1,)}[kind]
    getattr(place(net), f"register_{kind}_hook")(change)
    with pytest.raises(StretchError, match="a hook of `Sequential` changes its output"):
        capture(net, SHAPE)
    assert len(hooks_of(net)) == 1


@places
def test_hook_that_looks_is_called_once_and_stays(net, place):
    seen = []
    handle = place(net).register_forward_hook(lambda part, inputs, output: seen.append(output.shape))
    check_hooks(net, SHAPE, "net")
    assert len(seen) == 1
    assert [list(hooks) for hooks in hooks_of(net)] == [[handle.id]]
    handle.remove()
    assert hooks_of(net) == []


def test_input_that_the_network_rejects_is_left_for_the_capture_to_say(net):
    net.register_forward_hook(lambda part, inputs, output: None)
    with pytest.raises(UsageError, match="rejects an input of 1×5×8×8"):
        capture(net, (1, 5, 8, 8))
