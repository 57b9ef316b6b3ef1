"""Which images fits look at, and which the choice between fits."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

#: One image of so many is held back from the fits …
EVERY = 5
#: … but not fewer than this,
FEWEST = 16
#: and none where that were more than one of so many.
MOST = 4

#: Bytes of one batch's largest activation: what a processor's caches, or a GPU, work through best.
_CPU_BYTES, _GPU_BYTES = 2**25, 2**28


@dataclass(frozen=True)
class Split:
    """How batches are divided between fits and choice."""

    fitted: int  # Batches, the first, that fits look at.
    images: int  # Images in those.
    held: int  # The first batch that the choice looks at; 0 where there are too few images to hold any back.


def held_back(count: int) -> torch.Tensor:
    """Which of so many images no fit looks at, (images,) bool; none where they are too few.

    They are spread over all, since folders are often sorted.
    """
    chosen = torch.zeros(count, dtype=torch.bool)
    back = max(count // EVERY, FEWEST)
    if back * MOST <= count:
        chosen[torch.arange(back) * count // back] = True
    return chosen


def divide(images: Sequence[torch.Tensor], largest: int, synthetic: Sequence[torch.Tensor] = ()) -> tuple[list[torch.Tensor], Split]:
    """Divide images between fits and choice.

    How the images come in batches makes no difference.

    Args:
        largest: Bytes of one image's largest activation.
        synthetic: Batches that fits look at besides, and the choice does not.

    Returns:
        Other batches of the same images, of a size that suits the device, and what they are for.
    """
    together = torch.cat([*images, *synthetic])
    chosen = held_back(sum(len(batch) for batch in images))
    chosen = F.pad(chosen, (0, len(together) - len(chosen))).to(together.device)
    if not together.is_cuda and together.dim() == 4:
        # CPU convolutions need not reorder what is stored so, nor do regressions.
        together = together.contiguous(memory_format=torch.channels_last)
    size = max(1, (_GPU_BYTES if together.is_cuda else _CPU_BYTES) // largest)
    fitted, held = (list(together[mask].split(size)) if mask.any() else [] for mask in (~chosen, chosen))
    return fitted + held, Split(len(fitted), int((~chosen).sum()), len(fitted) if held else 0)
