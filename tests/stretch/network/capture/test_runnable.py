"""Capture by export: graphs that compute what torch does, and graphs for predictions with the MACs that torch counts."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from predictors.errors import StretchError, UsageError
from predictors.fusion import fuse
from predictors.graph import OpGraph
from stretch.network.capture.exported import capture_exported, capture_runnable
from stretch.network.capture.trace import capture_traced
from stretch.network.models.load import load_model
from stretch.planning.design.branch_design import BranchDesign
from stretch.planning.network.segments import cut_segment
from stretch.transform import build
from stretch.transform.build import load_weights
from stretch.transform.model import Branch
from tests.stretch.designs import whole
from tests.stretch.network.capture.patterns import PATTERNS, SIDE, Attention, Calling, network

SHAPE = (1, 3, SIDE, SIDE)


def built(captured):
    graph = captured.graph
    segment = cut_segment(graph, "all", graph.input.name, graph.output)
    return build(captured, BranchDesign(graph.name, "any", (whole(segment),)))


def close(got, want):
    return float((got - want).detach().abs().max()) <= 1e-4 * max(1e-3, float(want.detach().abs().max()))


def agreeing(module):
    """Return the captured network after checking its graph against torch for one image and for several."""
    captured = capture_runnable(module, SHAPE, "net")
    model = built(captured)
    for images in (1, 3):
        x = torch.randn(images, *SHAPE[1:], generator=torch.Generator().manual_seed(images))
        with torch.no_grad():
            assert close(model(x), module(x))
    return captured


def test_shuffled_channels_and_dropout_are_operators():
    def shuffled(x, layers):
        x = torch.cat([layers(x), x.repeat(1, 4, 1, 1)], 1)
        n, c, h, w = x.shape
        x = x.view(n, 3, c // 3, h, w).transpose(1, 2).contiguous().view(n, c, h, w)
        return tuple(x.chunk(2, 1))

    module = Calling(shuffled, nn.Sequential(nn.Conv2d(3, 12, 1), nn.Dropout(0.5))).eval()
    captured = capture_runnable(module, SHAPE, "net")
    kinds = [op.kind for op in captured.graph.ops if op.kind != "opaque"]
    assert kinds == ["input", "conv", "dropout", "concat", "channel_shuffle", "slice", "slice"]


@pytest.mark.representatives(7)
@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern.__name__)
def test_graph_has_the_results_and_gradients_of_torch_for_any_number_of_images(pattern):
    """Equal gradients at the input mean that the gradients of all weights before it would be equal, too."""
    module = network(pattern)
    model = built(agreeing(module))
    x = torch.randn(2, *SHAPE[1:], generator=torch.Generator().manual_seed(7))
    actual, expected = x.clone().requires_grad_(), x.clone().requires_grad_()
    model(actual).square().sum().backward()
    module(expected).square().sum().backward()
    assert close(actual.grad, expected.grad)
    learned = sum(p.numel() for p in model.parameters())
    assert learned >= sum(p.numel() for p in module.parameters())
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (Calling(lambda x: x + torch.rand_like(x)), "tensors from tensors alone"),
        (Calling(lambda x: F.dropout(x)), "drops at random"),
        (Calling(lambda x: {"word": "none"}), "nothing that depends on its input"),
        (Calling(lambda x: x * torch.rand(3, 1, 1)), "something else"),
        (Calling(lambda x: x[x > 0]), "depend"),
        (nn.Identity(), "returns its input"),
    ],
)
def test_network_that_no_graph_can_compute_is_refused(module, reason):
    with pytest.raises(StretchError, match=reason):
        capture_runnable(module.eval(), (1, 3, 4, 4), "net")


def counted_macs(module, shape):
    """Return half of the operations that torch counts at run time, with attention counted as its matrix products."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with FlopCounterMode(display=False) as counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            module(torch.zeros(shape))
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    return counter.get_total_flops() / 2


MAP, TOKENS, VECTOR = (1, 4, 6, 6), (1, 5, 4), (1, 4)


def checked_kinds(module, shape, captures=capture_runnable):
    """Return the kinds of the operators after the input (opaque ones as `:variant`); check their results against torch."""
    captured = captures(module.eval(), shape, "net")
    assert captured.graph.macs == counted_macs(module, shape)
    model = Branch(captured.graph).eval()
    with torch.no_grad():
        for name, weights in captured.weights.items():
            load_weights(model.get_submodule(name), weights)
        for images in (1, 2):
            x = torch.randn(images * shape[0], *shape[1:], generator=torch.Generator().manual_seed(images))
            parts = [module(part) for part in x.split(shape[0])]
            got, want = model(x), torch.cat(parts)
            assert got.shape == want.shape
            assert torch.allclose(got, want, atol=1e-5)
    return [f":{op.attrs['variant']}" if op.kind == "opaque" else op.kind for op in captured.graph.ops[1:]]


#: Functions that tracing and exporting turn into the same operators: shapes of the input and of parameters, and the kinds.
BOTH = [
    (lambda x, w, b: F.conv2d(x, w, b, 2, 1, 1, 2), MAP, ((6, 2, 3, 3), (6,)), ["conv"]),
    (lambda x, w: F.conv2d(x, w, padding="same"), MAP, ((4, 4, 3, 3),), ["conv"]),
    (lambda x, w, b: F.linear(x, w, b), VECTOR, ((3, 4), (3,)), ["linear"]),
    (lambda x: F.prelu(x, torch.tensor([0.2])), MAP, (), ["prelu"]),
    (lambda x, w: F.prelu(x, w), MAP, ((4,),), ["prelu"]),
    (lambda x: F.elu(x, 0.5), MAP, (), ["elu"]),
    (lambda x: F.avg_pool2d(x, 2), MAP, (), ["avg_pool"]),
    (lambda x: F.interpolate(x, scale_factor=2), MAP, (), ["upsample"]),
    (lambda x, w: x * w, MAP, ((4, 1, 1),), ["scale"]),
    (lambda x, w: x + w, MAP, ((1, 4, 1, 1),), ["shift"]),
    (lambda x: x / 2 - 1, MAP, (), ["mul_scalar", "add_scalar"]),
    (lambda x: x + x.relu(), MAP, (), ["relu", "add"]),
    (lambda x: x.softmax(1), MAP, (), ["softmax"]),
    (lambda x: x.mean((2, 3)), MAP, (), ["global_avg_pool"]),
    (lambda x: x[:, 1:3], MAP, (), ["slice"]),
    (lambda x, w, b: F.group_norm(x, 2, w, b), MAP, ((4,), (4,)), ["group_norm"]),
    (lambda x: F.max_pool2d(x, 2), MAP, (), ["max_pool"]),
    (lambda x: F.pad(x, (1, 0, 2, 1)), MAP, (), ["pad"]),
    (lambda x, w: x.clone().mul_(w).relu_(), MAP, ((4, 1, 1),), ["scale", "relu"]),
    (lambda x: x.flatten(1), MAP, (), ["flatten"]),
    (lambda x: F.dropout(x, 0.5, training=False).clamp(-1, 2), MAP, (), ["dropout", "clamp"]),
    (lambda x: torch.add(x, x), MAP, (), ["add"]),
    (lambda x: x.mul(x), MAP, (), ["mul"]),
    (lambda x: torch.cat([x, x], 1), MAP, (), ["concat"]),
    (lambda x: x.mean((2, 3), keepdim=True), MAP, (), ["global_avg_pool"]),
    (lambda x: F.adaptive_avg_pool2d(x, (1, 1)), MAP, (), ["global_avg_pool"]),
    (lambda x: F.hardtanh(x, 0.0, 6.0), MAP, (), ["relu6"]),
    (lambda x: F.leaky_relu(x, 0.2), MAP, (), ["leaky_relu"]),
    (lambda x: F.gelu(x, approximate="tanh"), MAP, (), ["gelu"]),
    (lambda x: x.view(x.size(0), -1), MAP, (), ["flatten"]),
    (lambda x: torch.flatten(x, 1), MAP, (), ["flatten"]),
    (lambda x: x + 3, MAP, (), ["add_scalar"]),
    (lambda x: 2 * x, MAP, (), ["mul_scalar"]),
    (lambda x: -x, MAP, (), ["mul_scalar"]),
    (lambda x: F.relu(input=x), MAP, (), ["relu"]),
    (lambda x: x.clamp(min=0), MAP, (), ["relu"]),
    (lambda x: torch.clamp(x, 0, 6), MAP, (), ["relu6"]),
    (lambda x: F.mish(x), MAP, (), ["mish"]),
    (lambda x: F.log_softmax(x.mean((2, 3)), dim=1), MAP, (), ["global_avg_pool", "log_softmax"]),
    (lambda x: x[:, 1].unsqueeze(1), MAP, (), ["slice"]),
    (lambda x: torch.cat([torch.chunk(x, 2, dim=1)[1], torch.chunk(x, 2, dim=1)[0]], 1), MAP, (), ["slice", "slice", "concat"]),
    (lambda x: torch.cat([x.split([1, 3], dim=1)[0], x.split([1, 3], dim=1)[1]], 1), MAP, (), ["slice", "slice", "concat"]),
    (lambda x: F.layer_norm(x.permute(0, 2, 3, 1), (4,)).permute(0, 3, 1, 2), MAP, (), ["layer_norm"]),
    (lambda x: F.gelu(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2), MAP, (), ["gelu"]),
    (lambda x: x * x.mean((2, 3)).view(1, 4, 1, 1), MAP, (), ["global_avg_pool", "unflatten", "mul"]),
    (lambda x: x * F.relu6(x + 3) / 6, MAP, (), ["add_scalar", "relu6", "mul", "mul_scalar"]),
    (lambda x: torch.cat([x.chunk(2, 1)[1:][0], x.chunk(2, 1)[0]], 1), MAP, (), ["slice", "slice", "concat"]),
    (lambda x: torch.cat([x[:, -1:], x[:, 0].unsqueeze(1)], 1), MAP, (), ["slice", "slice", "concat"]),
]
#: Functions that tracing refuses; opaque operators are given as `:variant`.
EXPORTED = [
    (lambda x, w: F.conv_transpose2d(x, w), MAP, ((4, 3, 2, 2),), [":conv_transpose2d"]),
    (lambda x, w: F.conv1d(x, w), TOKENS, ((3, 5, 2),), [":conv1d"]),
    (lambda x, w: x @ w, VECTOR, ((4, 3),), ["linear"]),
    (lambda x, w, b: torch.addmm(b, x, w), VECTOR, ((4, 3), (3,)), ["linear"]),
    (lambda x, w, b: torch.addmm(b, x, w, alpha=2), VECTOR, ((4, 3), (3,)), [":addmm"]),
    (lambda x, w: F.linear(x, w), TOKENS, ((3, 4),), ["channels_first", "conv", ":permute"]),
    (lambda x, w: x @ w, TOKENS, ((4, 3),), ["channels_first", "conv", ":permute"]),
    (lambda x: F.selu(x), MAP, (), [":selu"]),
    (lambda x: F.avg_pool2d(x, 2, divisor_override=3), MAP, (), [":avg_pool2d"]),
    (lambda x: F.interpolate(x, scale_factor=1.5), MAP, (), [":upsample_nearest2d"]),
    (lambda x: F.interpolate(x, scale_factor=2.1, recompute_scale_factor=False), MAP, (), [":upsample_nearest2d"]),
    (lambda x, w: x + w, MAP, ((6,),), [":add"]),
    (lambda x: torch.add(x, x.relu(), alpha=3), MAP, (), ["relu", ":add"]),
    (lambda x: x.softmax(-1), MAP, (), [":softmax"]),
    (lambda x: x.double().softmax(1).float(), MAP, (), [":cast", ":softmax", ":cast"]),
    (lambda x: x.mean(1), MAP, (), [":mean"]),
    (lambda x: x.permute(0, 2, 3, 1), MAP, (), [":permute"]),
    (lambda x: x.mT, TOKENS, (), [":permute"]),
    (lambda x: x.movedim(1, -1), MAP, (), [":permute"]),
    (lambda x: x[:, :, :1].transpose(1, 2), MAP, (), ["subsample", "view"]),
    (lambda x: torch.cat(x.chunk(2, 1)[::-1], 1), MAP, (), ["slice", "slice", "concat"]),
    (lambda x: torch.cat(x.split([2, 4], 3)[::-1], 3), MAP, (), ["subsample", "subsample", ":concat"]),
    (lambda x: x.unbind(1)[1], TOKENS, (), [":slice"]),
    (lambda x: x - x.relu(), MAP, (), ["relu", "mul_scalar", "add"]),
    (lambda x: x / (x.sigmoid() + 1), MAP, (), ["sigmoid", "add_scalar", "div"]),
    (lambda x, w: torch.addcmul(w, w, x), MAP, ((1, 4, 1, 1),), ["scale", "shift"]),
    (lambda x: torch.linalg.vector_norm(x, dim=(2, 3), keepdim=True), MAP, (), ["global_l2_norm"]),
    (lambda x: x.mean(1, keepdim=True), MAP, (), ["channel_mean"]),
    (lambda x: x.max(1).values, MAP, (), [":max"]),
    (lambda x: F.max_pool2d(x, 2, return_indices=True)[1].float(), MAP, (), [":max_pool2d_with_indices"]),
    (lambda x: F.pad(x, (1, 0, 2, 1), value=1.0), MAP, (), [":pad"]),
    (lambda x: x.masked_fill(x > 0, float("-inf")).exp(), MAP, (), [":gt", ":masked_fill", ":exp"]),
    (lambda x: F.scaled_dot_product_attention(x, x, x), TOKENS, (), [":matmul", ":softmax", ":matmul"]),
    (lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True), TOKENS, (), [":scaled_dot_product_attention"]),
    (lambda x: x.view(torch.int32).float(), MAP, (), [":view"]),
    (lambda x: x.reshape(1, 2, 2, 36).unsqueeze(0).squeeze(0).contiguous(), MAP, (), ["view"]),
    (lambda x: x[:, ::2], MAP, (), [":slice"]),
    (lambda x: torch.cat([torch.zeros(1, 1, 4), x], 1), TOKENS, (), [":concat"]),
    (lambda x: F.pad(x, (1, 1), mode="reflect"), TOKENS, (), [":pad"]),
    (lambda x: x.roll((1, 1), (2, 3)), MAP, (), ["roll"]),
    (lambda x, w: torch.einsum("bnc,bmc->bnm", x, w), TOKENS, ((1, 7, 4),), [":matmul"]),
    (lambda x, w: torch.einsum("...c,dc", x, w), TOKENS, ((7, 4),), [":matmul"]),
    (lambda x, w: torch.einsum("dc,...c,de->...e", w, x, w), TOKENS, ((7, 4),), [":matmul", ":matmul"]),
    (lambda x: torch.einsum("...ij->...j", x), TOKENS, (), [":einsum"]),
    (lambda x: F.adaptive_avg_pool2d(x, 4), MAP, (), [":adaptive_avg_pool2d"]),
    (lambda x: F.interpolate(x, size=(11, 11), mode="bilinear"), MAP, (), [":upsample_bilinear2d"]),
    (lambda x, w: x - w, MAP, ((4, 1, 1),), [":sub"]),
    (lambda x: 1 - x, MAP, (), [":rsub"]),
    (lambda x: F.channel_shuffle(x, 2), MAP, (), ["channel_shuffle"]),
    (lambda x: torch.cat([x, torch.ones_like(x)], 1), MAP, (), [":concat"]),
]
#: Functions for which tracing finds more supported operators than exporting does.
TRACED = [
    (lambda x, w: x - w, MAP, ((4, 1, 1),), ["shift"]),
    (lambda x: 1 - x, MAP, (), ["mul_scalar", "add_scalar"]),
    (lambda x: torch.cat([x], 1), MAP, (), ["identity"]),
    (lambda x: x + 0, MAP, (), ["identity"]),
    (lambda x: F.relu(x[..., :]), MAP, (), ["relu"]),
    (lambda x: x.view(1, 2, 2, 6, 6).transpose(1, 2).contiguous().view(1, -1, 6, 6), MAP, (), ["channel_shuffle"]),
    (lambda x: x.view(1, 2, 2, 6, 6).permute(0, 2, 1, 3, 4).reshape(1, 4, 6, 6), MAP, (), ["channel_shuffle"]),
    (lambda x: F.interpolate(x, size=(12, 18)), MAP, (), ["upsample"]),
    (lambda x: x * x.mean((2, 3))[:, :, None, None].expand_as(x), MAP, (), ["global_avg_pool", "unflatten", "mul"]),
    (lambda x: x * x.mean((2, 3)).unsqueeze(-1).unsqueeze(-1), MAP, (), ["global_avg_pool", "unflatten", "mul"]),
    (
        lambda x: x * x.mean((2, 3)).sigmoid().view(1, 4, 1, 1).expand(1, 4, 6, 6),
        MAP,
        (),
        ["global_avg_pool", "sigmoid", "unflatten", "mul"],
    ),
]


@pytest.mark.representatives(40)
@pytest.mark.parametrize(("function", "shape", "shapes", "kinds"), [*BOTH, *EXPORTED])
def test_exported_function_is_computed_by_supported_operators_or_by_torch(function, shape, shapes, kinds):
    assert checked_kinds(Calling(function, *shapes), shape) == kinds


@pytest.mark.representatives(20)
@pytest.mark.parametrize(("function", "shape", "shapes", "kinds"), [*BOTH, *TRACED])
def test_traced_function_is_computed_by_supported_operators(function, shape, shapes, kinds):
    assert checked_kinds(Calling(function, *shapes), shape, capture_traced) == kinds


def test_mask_of_minus_infinity_is_stored_as_a_finite_number():
    mask = torch.full((5, 5), float("-inf")).triu(1)
    module = Calling(lambda x: F.scaled_dot_product_attention(x, x, x, attn_mask=mask))
    assert checked_kinds(module, TOKENS) == [":matmul", ":add", ":softmax", ":matmul"]
    weights = capture_runnable(module, TOKENS, "net").weights
    assert all(tensor.isfinite().all() for weight in weights.values() for tensor in weight.values())


@pytest.mark.parametrize(
    ("norm", "shape", "kind"),
    [
        (nn.BatchNorm2d(4, track_running_stats=False), MAP, ":batch_norm"),
        (nn.BatchNorm2d(4, affine=False), MAP, "batch_norm"),
        (nn.BatchNorm1d(4), VECTOR, "batch_norm"),
        (nn.BatchNorm1d(5), TOKENS, ":batch_norm"),
    ],
)
def test_norm_without_factors_or_axes_is_a_batch_norm_and_norm_without_statistics_is_opaque(norm, shape, kind):
    assert checked_kinds(norm, shape) == [kind]


def test_sum_that_broadcasts_one_image_over_the_batch_is_opaque():
    """Several images in one batch follow each other, so a sum could not show which image is repeated."""
    assert checked_kinds(Calling(lambda x: x.reshape(6, 4, 6, 1) + x.reshape(6, 4, 6, 1).mean(0, keepdim=True)), (1, 4, 6, 6))[-1] == ":add"


TRANSFORMERS = [
    *("vit_b_16", "swin_t", "convnext_tiny", "timm:deit_tiny_distilled_patch16_224", "timm:beit_base_patch16_224"),
    *("timm:mobilevit_s", "timm:efficientformer_l1", "timm:levit_128s", "timm:maxvit_tiny_rw_224", "timm:poolformer_s12"),
]


@pytest.mark.slow
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_macs_of_an_exported_network_are_those_that_torch_counts(name):
    loaded = load_model(name, weights="none")
    graph = capture_exported(loaded.module, loaded.input_shape, name)
    assert (graph.macs, OpGraph.from_json(graph.to_json())) == (counted_macs(loaded.module, loaded.input_shape), graph)
    assert fuse(graph, "tflite_cpu")


@pytest.mark.parametrize(
    ("module", "shape", "error", "reason"),
    [
        (Calling(lambda x: x * 2 if x.sum() > 0 else x), (1, 3, 8, 8), StretchError, r"cannot be exported by torch\.export"),
        (Calling(lambda x: x.reshape(-1)[x.reshape(-1) > 0]), (1, 3, 8, 8), StretchError, r"depends on values|cannot be exported"),
        (network(Attention), (1, 4, 8, 8), UsageError, "rejects an input of 1×4×8×8"),
    ],
)
def test_data_dependent_network_or_rejected_input_is_refused_without_output_of_torch(capfd, module, shape, error, reason):
    with pytest.raises(error, match=reason):
        capture_exported(module, shape)
    assert capfd.readouterr() == ("", "")


def test_unsupported_call_is_opaque_in_a_graph_for_prediction_and_the_mode_is_kept():
    module = network(Attention).train()
    capture_exported(module, SHAPE)
    assert module.training
    module = Calling(lambda x: (x + torch.rand_like(x)).relu())
    assert [op.kind for op in capture_exported(module, SHAPE).ops] == ["input", "opaque", "add", "relu"]
