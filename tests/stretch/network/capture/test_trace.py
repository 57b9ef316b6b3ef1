"""Capture by tracing: parameters, modes, hooks, inputs, networks that branch on shapes, and refusals."""

import contextlib

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from predictors.errors import StretchError, UsageError
from stretch.network.capture import capture as capture_any
from stretch.network.capture.exported import capture_runnable, inline
from stretch.network.capture.inputs import Inputs, check_hooks, hooks_of
from stretch.network.capture.trace import capture_traced as capture
from stretch.transform import Branch, build
from tests.stretch.designs import identity_design
from tests.stretch.network.capture.patterns import Attention, Calling, network


@pytest.mark.slow
def test_macs_of_resnet50_are_the_published_ones(captured):
    assert captured("resnet50").graph.macs == pytest.approx(4.09e9, rel=0.01)


@pytest.mark.parametrize("shape", [(1, 3, 8, 8), (1, 5, 8, 8)], ids=["captured", "refused"])
def test_modes_of_inner_modules_stay_unchanged(shape):
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Sequential(nn.ReLU(), nn.Dropout())).train()
    module[1].training = module[2].training = False
    with contextlib.suppress(UsageError):
        capture(module, shape)
    assert [part.training for part in module.modules()] == [True, True, False, False, True, True]


def branching(x):
    return x if x.sum() > 0 else -x


def through_view(x):
    y = x + 1
    y[:, :2].mul_(2)
    return y * 3


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (Calling(branching), "cannot be traced"),
        (Calling(lambda x, conv: torch.sort(conv(x))[0], nn.Conv2d(3, 4, 1)), "node `(sort|getitem)`"),
        (nn.CosineSimilarity(), "exactly one input"),
        (Calling(lambda x: {"out": x}), "returns its input"),
        (Calling(lambda x, gamma: x * gamma, (1, 3, 8, 1)), r"node `mul`.*\(1, 3, 8, 1\)"),
        (Calling(through_view), "changed in place through a view"),
        (Calling(lambda x: x * torch.rand(1)), "something else when it is traced"),
        (nn.Identity(), "has no operator"),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4)), "`1`.*InstanceNorm2d"),
        (nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect")), "padding mode"),
        (nn.Sequential(nn.ConvTranspose2d(3, 4, 3)), "ConvTranspose2d"),
        (nn.Sequential(nn.AdaptiveAvgPool2d(3)), "unequal windows"),
    ],
)
def test_unsupported_network_is_refused_naming_the_node(module, reason):
    with pytest.raises(StretchError, match=reason) as caught:
        capture(module, (1, 3, 8, 8))
    assert caught.value.hint


def test_subclass_with_another_forward_is_not_captured_as_its_base():
    class Doubled(nn.Conv2d):
        def forward(self, x):
            return super().forward(x) + super().forward(x)

    module = nn.Sequential(Doubled(3, 4, 1))
    captured = capture(module, (1, 3, 8, 8))
    assert [op.kind for op in captured.graph.ops] == ["input", "conv", "conv", "add"]
    assert captured.weights["conv2d"]["weight"] is module[0].weight


def test_change_in_place_is_seen_through_all_aliases():
    def reused(x, conv, relu):
        x = conv(x)
        y = conv(relu(x))
        x = x + y
        z = x
        x += y
        return z * x

    module = Calling(reused, nn.Conv2d(3, 3, 3, padding=1), nn.ReLU(inplace=True))
    captured = capture(module, (1, 3, 8, 8))
    branch = Branch(captured.graph)
    for name, weights in captured.weights.items():
        branch.get_submodule(name).load_state_dict(weights)
    x = torch.randn(1, 3, 8, 8)
    with torch.inference_mode():
        torch.testing.assert_close(branch(x), module(x))


class Padded(nn.Module):
    def __init__(self, sides, stride, after="max", ceil_mode=False):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)
        self.sides, self.stride, self.after, self.ceil_mode = sides, stride, after, ceil_mode

    def forward(self, x):
        x = F.pad(self.conv(x), self.sides, value=-float("inf"))
        if self.after == "relu":
            return torch.relu(x)
        return torch.relu(F.max_pool2d(x, 3, self.stride, ceil_mode=self.ceil_mode))


@given(st.tuples(*[st.integers(0, 1)] * 4), st.integers(1, 3), st.integers(0, 2**16))
def test_pooling_padded_by_minus_infinity_is_one_operator_with_the_same_result(sides, stride, seed):
    network = Padded(sides, stride)
    captured = capture(network, (1, 3, 7, 6), "net")
    assert [op.kind for op in captured.graph.ops] == ["input", "conv", "max_pool", "relu"]
    left, right, top, bottom = sides
    assert captured.graph.by_name["max_pool2d"].attrs["padding"] == (top, left, bottom, right)
    x = torch.randn(1, 3, 7, 6, generator=torch.Generator().manual_seed(seed))
    with torch.inference_mode():
        assert torch.equal(build(captured, identity_design(captured.graph))(x), network(x))


@pytest.mark.parametrize(
    ("network", "kinds", "refusal"),
    [
        (Padded((0, 1, 1, 0), 2), ["conv", "max_pool", "relu"], ""),
        (Padded((1, 1, 1, 1), 1, "relu"), ["conv", "opaque", "relu"], "minus infinity is read by `relu`"),
        (Padded((1, 1, 1, 1), 2, ceil_mode=True), ["conv", "opaque", "max_pool", "relu"], "minus infinity is read by `max_pool2d`"),
        (Padded((0, 0, 2, 0), 1), ["conv", "opaque", "max_pool", "relu"], "further than half of its window"),
    ],
)
def test_padding_with_minus_infinity_that_no_pooling_can_absorb_is_opaque(network, kinds, refusal):
    # the captured graph is compared with the network
    assert [op.kind for op in capture_runnable(network, (1, 3, 7, 6), "net").graph.ops][1:] == kinds
    with pytest.raises(StretchError, match=refusal) if refusal else contextlib.nullcontext():
        capture(network, (1, 3, 7, 6), "net")


class Switched(nn.Module):
    def forward(self, x):
        with torch.autocast("cpu"):
            a, b = (x @ x).relu(), x.sin()
        with torch.no_grad():
            c = a * 2
        return (a + b) / (1 + c.abs())


def test_part_in_another_precision_is_not_inlined():
    exported = torch.export.export(Switched(), (torch.ones(3, 3),), strict=False)
    inline(exported)
    assert any("wrap_with_autocast" in str(node.target) for node in exported.graph.nodes)


class Masked(nn.Module):
    def forward(self, image, mask, gain=2.0):
        return image * mask * gain


A, B = (1, 3, 4, 4), (1, 1, 4, 4)


@pytest.mark.parametrize("arguments", [[A, B], {"image": A, "mask": B}, {"mask": B, "image": A}])
def test_several_inputs_are_given_by_name_and_ordered_as_in_forward(arguments):
    inputs = Inputs.of(arguments, Masked())
    assert list(inputs.shapes.items()) == [("image", A), ("mask", B)]
    image, mask = inputs.random(3)
    assert torch.equal(inputs.call(Masked(), [image, mask]), image * mask * 2.0)
    assert torch.equal(inputs.random(3)[1], mask)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"image": A}, "no shape for its input `mask`"),
        ({"image": A, "mask": B, "other": A}, "no input `other`"),
        ([A, B, (1,), (1,)], "4 input shapes"),
        ({"image": A, "mask": (1, 0)}, "no shape"),
        ({"image": A, "mask": "big"}, "no shape"),
        ({}, "no shape for its input"),
    ],
)
def test_shapes_that_do_not_fit_forward_are_refused(arguments, reason):
    with pytest.raises(UsageError, match=reason) as refused:
        Inputs.of(arguments, Masked())
    assert refused.value.hint


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
def test_hook_that_changes_nothing_is_called_once_and_stays(net, place):
    seen = []
    handle = place(net).register_forward_hook(lambda part, inputs, output: seen.append(output.shape))
    check_hooks(net, SHAPE, "net")
    assert (len(seen), [list(hooks) for hooks in hooks_of(net)]) == (1, [[handle.id]])
    handle.remove()
    assert hooks_of(net) == []


def test_input_that_the_network_rejects_is_reported_by_the_capture(net):
    net.register_forward_hook(lambda part, inputs, output: None)
    with pytest.raises(UsageError, match="rejects an input of 1×5×8×8"):
        capture(net, (1, 5, 8, 8))


def test_capture_says_why_a_network_cannot_be_traced_and_which_operators_are_opaque():
    captured = capture_any(network(Attention), (1, 3, 8, 8), "net")
    assert "not supported" in captured.refusal
    kinds = {captured.graph.by_name[name].kind for name in captured.opaque}
    assert kinds == {"opaque"}
    # the class token goes before the other tokens; its position is a matter of pixels, not of channels
    assert {str(captured.graph.by_name[name].attrs["variant"]) for name in captured.opaque} == {"permute", "concat"}
    assert not {"0_0", "0_1", "1_norm", "1_proj", "2_2"} & set(captured.opaque)


def asserts(x, conv):
    assert x.shape[1] == 3
    assert x.dim() == x.ndim == 4, "images"
    return conv(x)


def torch_asserts(x, conv):
    torch._assert(x.shape[1] == 3, "three channels")
    return conv(x)


def raises(x, conv):
    if x.shape[-1] % 4 or x.size(2) % 4:
        raise ValueError(f"{x.shape[-1]} is no multiple of 4")
    return conv(x)


def unpacks(x, conv):
    b, c, h, w = x.shape
    assert (b, c, len(x)) == (1, 3, 1)
    assert x.numel() == b * c * h * w
    y = conv(x)
    for _ in range(y.shape[1] // 2):
        y = y + 1
    return y.reshape(b, -1)


def depends(x, conv):
    y = conv(x)
    left, right = y.chunk(2, 1)
    if left.shape != right.shape:
        return left
    return left + right if int(y.size(1) * 0.5) == left.size(1) else left


def within(x, asserting, narrow):
    """Assert on the shape of the result of an inner module, which has assertions, too."""
    y = asserting(x)
    assert y.shape == (x.shape[0], 4, *x.shape[2:])
    return asserting(narrow(y))


def by_value(x, conv):
    if x.mean() > 0:
        return conv(x)
    return x


def wide(x, conv):
    assert x.shape[-1] == 224, "wide images only"
    return conv(x)


def silent(x, conv):
    assert x.shape[-1] == 224
    return conv(x)


def convolving(function):
    """Make a network from a function of a convolution; `within` also gets a network with assertions."""
    conv = nn.Conv2d(3, 4, 3, padding=1)
    return Calling(function, *([Calling(asserts, conv), nn.Conv2d(4, 3, 1)] if function is within else [conv])).eval()


@pytest.mark.parametrize("function", [asserts, torch_asserts, raises, unpacks, depends, within])
def test_network_that_branches_on_shapes_is_captured_with_the_same_result(function):
    module = convolving(function)
    # the exported graph is compared with the network before it is returned
    captured = capture_any(module, (1, 3, 8, 8))
    assert captured.graph.by_name[captured.graph.output].shape == tuple(module(torch.zeros(1, 3, 8, 8)).shape)
    assert captured.graph.params > 0
    assert not captured.opaque


@pytest.mark.parametrize(
    ("function", "error", "reason", "line", "hint"),
    [
        (by_value, StretchError, "cannot be traced", "`if x.mean() > 0:`", "traceable part"),
        (wide, UsageError, "rejects an input of 1×3×8×8: wide images only", "`assert x.shape[-1] == 224", "--input"),
        (silent, UsageError, "rejects an input of 1×3×8×8: (AssertionError|assert 8)", "`assert x.shape[-1] == 224", "--input"),
    ],
)
def test_line_that_branches_on_values_or_rejects_the_input_is_named(function, error, reason, line, hint):
    with pytest.raises(error, match=reason) as caught:
        capture_any(convolving(function), (1, 3, 8, 8))
    assert "test_trace.py, line " in caught.value.message
    assert line in caught.value.message
    assert hint in caught.value.hint


class Remembering(nn.Module):
    """Cache the result of the first call for later calls, as timm's position tables do."""

    def __init__(self):
        super().__init__()
        self.conv, self.bias = nn.Conv2d(3, 4, 1), nn.Parameter(torch.ones(4))
        self.kept, self.calls = {}, []

    def forward(self, x):
        if "bias" not in self.kept:
            self.kept["bias"] = self.bias[None, :, None, None] * 2
            self.calls.append(1)
            self.last = self.kept["bias"]
        return self.conv(x) + self.kept["bias"]


def test_tracing_does_not_fill_the_cache_of_a_module():
    module, x = Remembering().eval(), torch.randn(1, 3, 4, 4)
    captured = capture_any(module, tuple(x.shape))
    assert captured.graph.by_name[captured.graph.output].shape == (1, 4, 4, 4)
    assert (module.kept, module.calls, hasattr(module, "last")) == ({}, [], False)
    with torch.no_grad():
        assert torch.isfinite(module(x)).all()
    assert isinstance(module.kept["bias"], torch.Tensor)


class Sequence(nn.Module):
    """Read an input of shape batch × steps × numbers."""

    def __init__(self, function):
        super().__init__()
        self.layer, self.function = nn.Linear(8, 8), function

    def forward(self, tokens):
        return self.function(tokens, self.layer)


def unpacking(tokens, layer):
    batch, steps, numbers = tokens.shape
    return layer(tokens.reshape(batch * steps, numbers))


@pytest.mark.parametrize("function", [lambda tokens, layer: layer(tokens) * tokens.shape[2], unpacking])
@pytest.mark.parametrize("shape", [(2, 8), (8,)])
def test_wrong_number_of_axes_is_reported_with_an_example_shape_for_tokens(function, shape):
    with pytest.raises(UsageError, match="number of axes") as caught:
        capture_any(Sequence(function), [shape])
    assert "tokens=1x16x32" in caught.value.hint


class Deformed(nn.Module):
    """Use an operator of another library whose Python code branches on its inputs."""

    def __init__(self):
        super().__init__()
        ops = pytest.importorskip("torchvision.ops")
        self.offset, self.deformed = nn.Conv2d(3, 18, 3, padding=1), ops.DeformConv2d(3, 8, 3, padding=1)

    def forward(self, x):
        return self.deformed(x, self.offset(x))


def test_refusal_names_the_unsupported_operator_and_not_its_control_flow():
    with pytest.raises(StretchError) as caught:
        capture_any(Deformed().eval(), (1, 3, 8, 8))
    assert "deform_conv2d" in caught.value.message
    assert "control flow" not in caught.value.message + (caught.value.hint or "")
