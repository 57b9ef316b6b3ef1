"""Template parameters of a kernel: candidates, an analytic ranking, and what a tuner found."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from scheduler.delegates.opencl.device import Traits

Parameters = Mapping[str, int]

#: Bytes of weights that come from beyond the second cache in a cycle.
WEIGHT_BYTES_A_CYCLE = 4.0
#: Work-items that a large GPU runs at once.
GPU_WORK_ITEMS = 65536


@dataclass(frozen=True)
class Options:
    """Switches of the compilation, for experiments and for devices on which another choice is quicker.

    Args:
        winograd: Where to use Winograd's algorithm: `auto` ranks it beside the direct one.
        fuse: Merge activations and additions into convolutions.
        borders: `regions` checks bounds where a tile meets the border alone; `pad` copies the input into a padded image.
        schedule: `best` ranks tiles; `tvm` takes the template that paper 004 gives as its example, VH 1, VW 4, VC 4.
        tuned: Take schedules and work-groups that were tuned, by the user or for the package.
        arithmetic: Of tensors stored in half precision: `auto` computes with half where the device states `cl_khr_fp16`, `half` and `float`
            say which.
    """

    winograd: str = "auto"
    fuse: bool = True
    borders: str = "regions"
    schedule: str = "best"
    tuned: bool = True
    arithmetic: str = "auto"


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
        asked: The problems that were asked for so far, with their candidates, the one that is taken first.
    """

    traits: Traits
    tuned: Mapping[tuple[str, str], Parameters] = field(default_factory=dict)
    asked: list[tuple[Problem, list[Parameters]]] = field(default_factory=list)

    def choose(self, problem: Problem, candidates: Sequence[Parameters]) -> Parameters:
        """The parameters to compile with.

        Args:
            problem: What is computed.
            candidates: Legal parameters, the best first.
        """
        found = self.tuned.get((problem.kernel, problem.shape))
        ordered = sorted(candidates, key=lambda candidate: dict(candidate) != found)
        self.asked.append((problem, ordered))
        return ordered[0]

    @cached_property
    def tiles(self) -> tuple[tuple[int, int], ...]:
        """Tiles (VW pixels, VC blocks) whose sums stay in registers, with those for weights and inputs."""
        limit = self.traits.registers
        fits = [
            (vw, vc) for vw in (1, 2, 3, 4, 5, 6, 8, 10) for vc in (1, 2, 3, 4, 8) if vw * vc + vc + (1 if self.traits.cpu else vw) <= limit
        ]
        return tuple(fits)


def rank_tiles(schedules: Schedules, problem: Problem, legal: Callable[[int, int], bool] = lambda vw, vc: True) -> list[Parameters]:
    """Tiles of a convolution, the one with the least estimated time first.

    For each input channel a tile of VW pixels and VC blocks does VW·VC vector
    multiply-adds and VW + VC loads. The estimate counts the slower of the two
    (about 2 of each a cycle on a CPU, one where weights stream from the second
    cache), the latency of a multiply-add where there are too few sums to hide
    it, and the tiles at the end that are only partly used; the numbers were
    fitted to 18 tiles on a Zen 4. On a GPU too few work-items leave it idle.
    """
    estimates = []
    for vw, vc in schedules.tiles:
        if vw <= problem.pixels and vc <= max(1, problem.blocks) and legal(vw, vc):
            estimates.append((_cycles(schedules.traits, problem, vw, vc), -vw, -vc, int(schedules.traits.cpu)))
    estimates.sort()
    ordered = [{"VW": -vw, "VC": -vc, "CHANNELS_FIRST": first} for _, vw, vc, first in estimates]
    ordered += [tile | {"CHANNELS_FIRST": 1 - tile["CHANNELS_FIRST"]} for tile in ordered]
    return list[Parameters](ordered) or [{"VW": 1, "VC": 1, "CHANNELS_FIRST": 0}]


def least_cycles(schedules: Schedules, problem: Problem) -> float:
    """Estimated time of the best tile, with that of reading the weights once."""
    best = min(
        _cycles(schedules.traits, problem, vw, vc) for vw, vc in schedules.tiles if vw <= problem.pixels and vc <= max(1, problem.blocks)
    )
    lanes = schedules.traits.lanes
    weight_bytes = problem.batch * problem.blocks * lanes * problem.depth * 4
    return best + weight_bytes / WEIGHT_BYTES_A_CYCLE


def _cycles(traits: Traits, problem: Problem, vw: int, vc: int) -> float:
    across, down = -(-problem.pixels // vw), -(-problem.blocks // vc)
    if traits.cpu:
        cycles = max(0.52 * vw * vc, 0.56 * (vw + vc), 1.05 * vc, 4.3)
        # Setting up a tile, and writing it.
        return problem.batch * across * down * (cycles * problem.depth + 5 * vw * vc + 15)
    waves = max(1.0, across * down * problem.batch / GPU_WORK_ITEMS)
    return waves * (max(vw * vc, 8.0 * (vw + vc) / traits.lanes) * problem.depth + 40)
