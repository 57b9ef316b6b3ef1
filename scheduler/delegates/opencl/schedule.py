"""Template parameters of a kernel: candidates, an analytic ranking, and what a tuner found."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from scheduler.delegates.opencl.device import Traits

Parameters = Mapping[str, int]


@dataclass(frozen=True)
class Options:
    """Switches of the compilation, for experiments and for devices on which another choice is quicker.

    Args:
        winograd: Where to use Winograd's algorithm: `auto` ranks it beside the direct one.
        fuse: Merge activations and additions into convolutions.
        borders: `regions` checks bounds where a tile meets the border alone; `pad` copies the input into a padded image.
        schedule: `best` ranks tiles; `tvm` takes the template that paper 004 gives as its example, VH 1, VW 4, VC 4.
    """

    winograd: str = "auto"
    fuse: bool = True
    borders: str = "regions"
    schedule: str = "best"


@dataclass(frozen=True)
class Problem:
    """What decides which schedule of a kernel is quickest.

    Args:
        kernel: Name of the kernel.
        shape: In words; equal words mean equal work.
        pixels: Output pixels of all images.
        blocks: Blocks of output channels.
        depth: Multiply-accumulates of one output element.
        batch: Products of one launch, 36 for Winograd's.
    """

    kernel: str
    shape: str
    pixels: int
    blocks: int
    depth: int
    batch: int = 1


@dataclass
class Schedules:
    """The schedule of each problem: what was tuned, else the best by the analytic ranking.

    Args:
        traits: Of the device.
        tuned: Parameters by problem, from a tuner's cache.
    """

    traits: Traits
    tuned: Mapping[tuple[str, str], Parameters] = field(default_factory=dict)

    def choose(self, problem: Problem, candidates: Sequence[Parameters]) -> Parameters:
        """The parameters to compile with.

        Args:
            problem: What is computed.
            candidates: Legal parameters, the best first.
        """
        found = self.tuned.get((problem.kernel, problem.shape))
        return found if found is not None and dict(found) in [dict(c) for c in candidates] else candidates[0]

    @cached_property
    def tiles(self) -> tuple[tuple[int, int], ...]:
        """Tiles (VW pixels, VC blocks) whose sums stay in registers, with those for weights and inputs."""
        limit = self.traits.registers
        fits = [
            (vw, vc)
            for vw in (1, 2, 3, 4, 5, 6, 8, 12, 14)
            for vc in (1, 2, 3, 4, 8)
            if vw * vc + vc + (1 if self.traits.cpu else vw) <= limit
        ]
        return tuple(fits)


def rank_tiles(schedules: Schedules, problem: Problem, legal: Callable[[int, int], bool] = lambda vw, vc: True) -> list[Parameters]:
    """Tiles of a convolution, the one with the least estimated time first.

    For each input channel a tile of VW pixels and VC blocks does VW·VC vector
    multiply-adds and VW + VC loads. The estimate counts the slower of the two
    (2 multiply-adds and 2 loads a cycle on a CPU), the latency of a
    multiply-add where there are too few sums to hide it, and the tiles at the
    end that are only partly used. On a GPU too few work-items leave it idle.
    """
    traits = schedules.traits
    estimates: list[tuple[float, int, int, int]] = []
    for vw, vc in schedules.tiles:
        if vw > problem.pixels or vc > max(1, problem.blocks) or not legal(vw, vc):
            continue
        across, down = -(-problem.pixels // vw), -(-problem.blocks // vc)
        if traits.cpu:
            cycles = max(vw * vc / 2, (vw + vc) / 2, 4.0)
            # Setting up a tile, and writing it.
            total = across * down * (cycles * problem.depth + 6 * vw * vc + 20)
        else:
            cycles = max(vw * vc, 2.0 * (vw + vc) / traits.lanes * 4)
            waves = max(1.0, across * down * problem.batch / 65536)
            total = waves * (cycles * problem.depth + 40)
        # Channels first: a pixel's inputs stay in the first cache while the weights stream.
        channels_first = 0
        if traits.cpu and problem.depth * traits.lanes * vc * 4 > 2**15 and problem.depth * problem.blocks * traits.lanes * 4 <= 2**19:
            channels_first = 1
        estimates.append((total, -vw, -vc, channels_first))
    estimates.sort()
    ordered: list[Parameters] = []
    for _, vw, vc, first in estimates:
        ordered += [{"VW": -vw, "VC": -vc, "CHANNELS_FIRST": first}]
    for _, vw, vc, first in estimates:
        ordered += [{"VW": -vw, "VC": -vc, "CHANNELS_FIRST": 1 - first}]
    return ordered or [{"VW": 1, "VC": 1, "CHANNELS_FIRST": 0}]
