"""Which images fits look at, and which the choice between fits."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

#: One image of so many is held back from the fits …
EVERY = 5
#: … but not fewer than this,
FEWEST = 16
#: and none where that were more than one of so many that fits can look at,
MOST = 4
#: or of the photographs among these.
MOST_PHOTOGRAPHS = 2

#: Bytes of one batch's largest activation: what a processor's caches, or a GPU, work through best.
_CPU_BYTES, _GPU_BYTES = 2**25, 2**28


@dataclass(frozen=True)
class Split:
    """How batches are divided between fits and choice."""

    fitted: int  # Batches, the first, that fits look at.
    images: int  # Images in those.
    held: int  # The first batch that the choice looks at; where there are too few images to hold any back, it looks at what fits do.


def held_back(count: int, synthetic: int = 0) -> torch.Tensor:
    """Which of so many images no fit looks at, (images,) bool; none where they are too few, also with those that are synthetic.

    They are spread over all, since folders are often sorted.
    """
    chosen = torch.zeros(count, dtype=torch.bool)
    back = max(count // EVERY, FEWEST)
    if back * MOST <= count + synthetic and back * MOST_PHOTOGRAPHS <= count:
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
    together = torch.cat([*synthetic, *images])
    chosen = held_back(*(sum(len(batch) for batch in some) for some in (images, synthetic))).to(together.device)
    if not together.is_cuda and together.dim() == 4:
        # CPU convolutions need not reorder what is stored so, nor do regressions.
        together = together.contiguous(memory_format=torch.channels_last)
    size = max(1, (_GPU_BYTES if together.is_cuda else _CPU_BYTES) // largest)
    photographs = together[-len(chosen) :]
    parts = (together[: -len(chosen)], photographs[~chosen], photographs[chosen])
    made, fitted, held = (list(part.split(size)) if len(part) else [] for part in parts)
    looked_at = made + fitted
    return looked_at + held, Split(len(looked_at), len(together) - len(parts[2]), len(looked_at) if held else len(made))
