import pytest

torch = pytest.importorskip("torch")

from predictors.errors import StretchError  # noqa: E402 - torch may be missing
from stretch.train.supernet import Supernet  # noqa: E402
from stretch.transform import build  # noqa: E402
from tests.stretch.train.supernets import design, pool  # noqa: E402

pytestmark = pytest.mark.torch


def images(count=32, size=16):
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("join", ["project", "sum"])
def test_full_width_subnet_starts_as_the_network_that_build_makes(captured, join):
    network = captured("tiny_resnet")
    wanted = design(network.graph, (1, 1.0), (2, 1.0), join)
    supernet = Supernet(network, [wanted]).eval()
    supernet.active = supernet.pool[0]
    with torch.no_grad():
        torch.testing.assert_close(supernet(images()), build(network, wanted)(images()))


@pytest.mark.parametrize("join", ["project", "sum"])
def test_largest_subnet_of_whole_copies_starts_as_the_original(captured, join):
    network = captured("tiny_resnet")
    supernet = Supernet(network, [design(network.graph, (3, 1.0), (3, 1.0), join)]).eval()
    with torch.no_grad():
        torch.testing.assert_close(supernet(images()), network.module.eval()(images()), atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_narrow_subnet_computes_what_the_whole_one_does_with_the_other_channels_masked(captured):
    """Oracle: the same weights in the original's own module, whose dropped channels are multiplied by zero."""
    network = captured("tiny_resnet")
    narrow = design(network.graph, (3, 0.5), (3, 1.0))
    supernet = Supernet(network, [narrow, design(network.graph, (3, 1.0), (3, 1.0))])
    with torch.no_grad():
        supernet.flat.add_(0.05 * torch.randn(supernet.flat.shape, generator=torch.Generator().manual_seed(2)))
    positions = supernet.sharing.positions(narrow)
    segment, offsets = "s2", supernet.sharing.offsets
    part, whole = supernet.pool
    for subnet in (whole, part):
        subnet.load(supernet.flat)
        subnet.model.eval()
    branch, original = part.model.branch(segment, "cpu"), whole.model.branch(segment, "cpu")
    masks = {}
    for name, _, _ in original.steps:
        key = f"{segment}.on_cpu.{name}.weight"
        if key in positions and ("conv" in name or "downsample_0" in name) and "join" not in name:
            rows = torch.tensor(offsets.shapes[key])
            kept = (positions[key].flatten(1)[:, 0] - offsets.starts[key]) // rows[1:].prod()
            masks[name] = torch.zeros(int(rows[0])).index_fill(0, kept, 1.0)
    handles = [
        original.get_submodule(name).register_forward_hook(lambda m, i, out, mask=mask: out * mask[None, :, None, None])
        for name, mask in masks.items()
    ]
    # Batch-norms of dropped channels would add their shift: they are masked too.
    for name, _, _ in original.steps:
        conv = name.replace("bn", "conv") if "bn" in name else name.replace("downsample_1", "downsample_0")
        if conv != name and conv in masks:
            handles.append(
                original.get_submodule(name).register_forward_hook(lambda m, i, out, mask=masks[conv]: out * mask[None, :, None, None])
            )
    x = torch.randn(4, 16, 8, 8)
    start = narrow.segments[2].branches[0].partition
    with torch.no_grad():
        torch.testing.assert_close(branch(x), original(x)[:, :start], atol=1e-4, rtol=1e-4)
    assert handles


@pytest.mark.slow
def test_extracted_network_computes_what_it_did_inside(captured):
    network = captured("tiny_resnet")
    supernet = Supernet(network, pool(network.graph))
    with torch.no_grad():
        supernet.flat.add_(0.02 * torch.randn(supernet.flat.shape))
    batches = [images(), images() * 0.5]
    for subnet in supernet.pool:
        model = supernet.extract(subnet.design, batches)
        subnet.load(supernet.flat)
        for own, inside in zip(model.modules(), subnet.model.modules(), strict=True):
            if isinstance(own, torch.nn.BatchNorm2d):
                inside.running_mean.copy_(own.running_mean)
                inside.running_var.copy_(own.running_var)
        supernet.eval()
        with torch.no_grad():
            torch.testing.assert_close(model(images()), subnet.model(images()))
        assert not any(p.data_ptr() == subnet.weights.data_ptr() for p in model.parameters())


def test_weights_of_another_pool_are_refused(captured):
    network = captured("tiny_resnet")
    one, other = Supernet(network, pool(network.graph)), Supernet(network, pool(network.graph)[:2])
    one.load_state_dict(one.state_dict())
    with pytest.raises(StretchError, match="another supernet"):
        other.load_state_dict(one.state_dict())


def test_extraction_without_images_is_refused(captured):
    supernet = Supernet(captured("tiny_resnet"), pool(captured("tiny_resnet").graph))
    with pytest.raises(StretchError, match="needs images"):
        supernet.extract(supernet.pool[0].design, [])


def test_calibrated_start_renews_statistics_and_leaves_weights(captured):
    network = captured("tiny_resnet")
    supernet = Supernet(network, pool(network.graph))
    before = supernet.flat.detach().clone()
    batches = [images(), 2 * images()]
    supernet.calibrate(batches)
    assert torch.equal(before, supernet.flat)
    supernet.eval()
    for subnet in supernet.pool:
        alone = supernet.extract(subnet.design, batches)
        supernet.active = subnet
        with torch.no_grad():
            torch.testing.assert_close(supernet(images()), alone(images()))
