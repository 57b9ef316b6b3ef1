"""Division of images between fits and the choice between them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
import torch.nn.functional as F

#: One image in this number is held back from the fits …
HELD_BACK_EVERY = 5
#: … and with few images one in this number, at most `MAX_HELD_BACK`: the choice between fits needs enough images.
HELD_BACK_EVERY_OF_FEW, MAX_HELD_BACK = 4, 16

#: Size in bytes of the largest activation of one batch: fits a CPU's caches, or suits a GPU.
_CPU_BYTES, _GPU_BYTES = 2**25, 2**28


@dataclass(frozen=True)
class Split:
    """Division of batches between fits and choice."""

    fitted: int  # Number of batches for the fits, from the first; the choice uses the others.
    images: int  # Number of images in the batches for the fits.


def held_back(count: int) -> torch.Tensor:
    """Mark the images that no fit uses, (count,) bool, spread over all because folders are often sorted; `count` is at least 4."""
    chosen = torch.zeros(count, dtype=torch.bool)
    held_back_count = max(count // HELD_BACK_EVERY, min(count // HELD_BACK_EVERY_OF_FEW, MAX_HELD_BACK))
    chosen[torch.arange(held_back_count) * count // held_back_count] = True
    return chosen


def divide(images: Sequence[torch.Tensor], largest: int, synthetic: Sequence[torch.Tensor] = ()) -> tuple[list[torch.Tensor], Split]:
    """Divide images between fits and choice, regardless of their batches.

    Args:
        largest: Size of one image's largest activation, in bytes.
        synthetic: Batches that only the fits use.

    Returns:
        Batches of the same images with a size that suits the device, and their division.
    """
    together = torch.cat([*synthetic, *images])
    chosen = held_back(sum(len(batch) for batch in images)).to(together.device)
    if not together.is_cuda and together.dim() == 4:
        # CPU convolutions and regressions need not reorder tensors of this format.
        together = together.contiguous(memory_format=torch.channels_last)
    size = max(1, (_GPU_BYTES if together.is_cuda else _CPU_BYTES) // largest)
    chosen = F.pad(chosen, (len(together) - len(chosen), 0))
    fitted, held_batches = (list(together[mask].split(size)) for mask in (~chosen, chosen))
    return fitted + held_batches, Split(len(fitted), int((~chosen).sum()))


@dataclass(frozen=True)
class Images:
    """Unlabelled images of a folder."""

    fitted: list[torch.Tensor]  # Batches for calibration, (n, channels, height, width).
    held_back: list[torch.Tensor] = field(default_factory=list)  # Batches of other images, for comparisons; empty without enough images.
    repeated: int = 0  # Number of images of the folder that were left out because they equal others.
    fingerprints: tuple[str, ...] = ()  # Fingerprints of the images for calibration.
    synthetic: list[torch.Tensor] = field(default_factory=list)  # Batches of images synthesised from the network, for fits.

    @cached_property
    def for_planning(self) -> "Images":
        """Images for calibration, divided as by calibration, so that plans are chosen without the images for comparisons."""
        images, size = torch.cat(self.fitted), len(self.fitted[0])
        chosen = held_back(len(images))
        return replace(self, fitted=list(images[~chosen].split(size)), held_back=list(images[chosen].split(size)))

    @property
    def warnings(self) -> list[str]:
        """Warnings about the images."""
        if not self.repeated:
            return []
        return [f"{self.repeated} of the images are the same as others and were left out: none may be both calibrated with and compared on"]
