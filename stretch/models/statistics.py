"""Random weights that show what a network computes: activations neither explode nor vanish, and no layer is nothing but zeros."""

import torch
from torch import nn

from stretch.capture.inputs import Inputs, InputShapes

#: Images that the statistics are taken from: one of each kind of `_images`.
#: They have the model's own size: smaller ones have more border, and the
#: difference grows from layer to layer.
IMAGES = 2

#: Layers that some networks begin with as zeros.
_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@torch.no_grad()
def settle(module: nn.Module, input_shape: InputShapes, generator: torch.Generator) -> None:
    """Give every batch-norm the statistics of what it reads, and a scale and shift of its own.

    Scales are drawn from 0.8 to 1.2 and shifts from −0.1 to 0.1: with the
    usual 1 and 0 (or 0 and 0 at the end of a residual block) mistakes in them
    would not be seen in any output. So it is with layers whose weights are all
    0, as the classifiers of some transformers are: they get weights of deviation
    1 over the root of what they read. The module is left in evaluation mode.
    """
    module.eval()
    for layer in module.modules():
        if isinstance(layer, _LAYERS) and not layer.weight.any():
            layer.weight.normal_(0, layer.weight[0].numel() ** -0.5, generator=generator)
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
        arguments = Inputs.of(input_shape, module)
        arguments.call(module, [_images((IMAGES, *shape[1:]), generator) for shape in arguments.shapes.values()])
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
    if len(shape) != 4:
        return noise
    coarse = torch.randn((*shape[:2], 8, 8), generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, size=shape[2:], mode="bilinear")
    noise[1::2] = (smooth / smooth.std())[1::2]
    return noise
