"""Which images fits look at, and which are held back from them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
import torch.nn.functional as F

#: One image of this number is held back from the fits …
HELD_BACK_EVERY = 5
#: … and of few images one of this number, at most `MAX_HELD_BACK`: fits to few images are chosen by these worst of all.
HELD_BACK_EVERY_OF_FEW, MAX_HELD_BACK = 4, 16

#: Bytes of one batch's largest activation: what a processor's caches, or a GPU, work through best.
_CPU_BYTES, _GPU_BYTES = 2**25, 2**28


@dataclass(frozen=True)
class Split:
    """How batches are divided between fits and choice."""

    fitted: int  # Batches, the first, that fits look at; the choice looks at the others.
    images: int  # Images in those.


def held_back(count: int) -> torch.Tensor:
    """Mark the images that no fit looks at, (count,) bool, spread over all, since folders are often sorted; `count` is 4 or more."""
    chosen = torch.zeros(count, dtype=torch.bool)
    held_back_count = max(count // HELD_BACK_EVERY, min(count // HELD_BACK_EVERY_OF_FEW, MAX_HELD_BACK))
    chosen[torch.arange(held_back_count) * count // held_back_count] = True
    return chosen


def divide(images: Sequence[torch.Tensor], largest: int, synthetic: Sequence[torch.Tensor] = ()) -> tuple[list[torch.Tensor], Split]:
    """Divide images between fits and choice, however they come in batches.

    Args:
        largest: Bytes of one image's largest activation.
        synthetic: Batches that fits look at besides, and the choice does not.

    Returns:
        Other batches of the same images, of a size that suits the device, and their purpose.
    """
    together = torch.cat([*synthetic, *images])
    chosen = held_back(sum(len(batch) for batch in images)).to(together.device)
    if not together.is_cuda and together.dim() == 4:
        # CPU convolutions need not reorder tensors of this format, nor do regressions.
        together = together.contiguous(memory_format=torch.channels_last)
    size = max(1, (_GPU_BYTES if together.is_cuda else _CPU_BYTES) // largest)
    chosen = F.pad(chosen, (len(together) - len(chosen), 0))
    fitted, held = (list(together[mask].split(size)) for mask in (~chosen, chosen))
    return fitted + held, Split(len(fitted), int((~chosen).sum()))


@dataclass(frozen=True)
class Images:
    """Unlabelled images of a folder."""

    fitted: list[torch.Tensor]  # Batches that calibration looks at, (n, channels, height, width).
    held_back: list[torch.Tensor] = field(default_factory=list)  # Batches of others, for comparing; empty where there are too few images.
    repeated: int = 0  # Images of the folder that were left out because they are the same as others.
    fingerprints: tuple[str, ...] = ()  # Of the images that calibration looks at.
    synthetic: list[torch.Tensor] = field(default_factory=list)  # Batches made from the network itself, which it is fitted to besides.

    @cached_property
    def for_planning(self) -> "Images":
        """The images of calibration, divided as calibration divides them: plans are chosen without the images that the network is compared on."""
        images, size = torch.cat(self.fitted), len(self.fitted[0])
        chosen = held_back(len(images))
        return replace(self, fitted=list(images[~chosen].split(size)), held_back=list(images[chosen].split(size)))

    @property
    def warnings(self) -> list[str]:
        """Warnings about the images."""
        if not self.repeated:
            return []
        return [f"{self.repeated} of the images are the same as others and were left out: none may be both calibrated with and compared on"]
