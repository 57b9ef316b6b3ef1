"""Batch-norm statistics for random weights, so that activations neither explode nor vanish."""

import torch
from torch import nn

#: Images that the statistics are taken from: one of each kind of `_images`.
#: They have the model's own size: smaller ones have more border, and the
#: difference grows from layer to layer.
IMAGES = 2

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@torch.no_grad()
def settle(module: nn.Module, input_shape: tuple[int, ...], generator: torch.Generator) -> None:
    """Give every batch-norm the statistics of what it reads, and a scale and shift of its own.

    Scales are drawn from 0.8 to 1.2 and shifts from −0.1 to 0.1: with the
    usual 1 and 0 (or 0 and 0 at the end of a residual block) mistakes in them
    would not be seen in any output. The module is left in evaluation mode.

    Args:
        module: A network with fresh weights; changed in place.
        input_shape: Shape of its input, batch first.
        generator: Source of all random numbers.
    """
    module.eval()
    norms = [m for m in module.modules() if isinstance(m, _NORMS)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        if norm.affine:
            norm.weight.uniform_(0.8, 1.2, generator=generator)
            norm.bias.uniform_(-0.1, 0.1, generator=generator)
        if norm.track_running_stats:
            norm.reset_running_stats()
            # None: the plain average over all batches seen
            norm.momentum = None
            norm.train()
    if not norms:
        return
    try:
        module(_images((IMAGES, *input_shape[1:]), generator))
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        module.eval()


def _images(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Half white noise, half smooth colours, each of mean 0 and deviation 1.

    Between them lie the spectra of photographs, so that the statistics suit
    all three.
    """
    noise = torch.randn(shape, generator=generator)
    coarse = torch.randn((*shape[:2], 8, 8), generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, size=shape[2:], mode="bilinear")
    noise[1::2] = (smooth / smooth.std())[1::2]
    return noise
