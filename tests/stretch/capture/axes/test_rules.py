import pytest

torch = pytest.importorskip("torch")

from stretch.capture.runnable import capture_runnable  # noqa: E402
from stretch.planning.network.channels import channel_groups  # noqa: E402
from tests.stretch.capture.test_runnable import built, close  # noqa: E402
from tests.stretch.capture.token_patterns import ATTENTIONS, LAST, MLPS, network  # noqa: E402

pytestmark = pytest.mark.torch

SHAPE = (1, 3, 8, 8)
PATTERNS = (*MLPS, *ATTENTIONS, *LAST)


@pytest.mark.representatives(1)
@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern.__name__)
def test_tokens_and_channels_that_lie_last_are_channels_and_pixels_of_maps(pattern):
    """No operator is opaque, no channels are held fast but the input's and the classes', and the network is the network."""
    module = network(pattern)
    captured = capture_runnable(module, SHAPE, "net")
    assert captured.opaque == ()
    frozen = {
        name for name, pieces in channel_groups(captured.graph).pieces.items() if pieces[0][0] in channel_groups(captured.graph).frozen
    }
    assert not {name for name in frozen if captured.graph.by_name[name].kind in ("conv", "linear", "add")}
    model = built(captured)
    for images in (1, 3):
        x = torch.randn(images, *SHAPE[1:], generator=torch.Generator().manual_seed(images))
        with torch.no_grad():
            assert close(model(x), module(x))
