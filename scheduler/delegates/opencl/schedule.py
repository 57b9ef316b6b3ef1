"""Template parameters of a kernel: candidates, their ranking by a learned or an analytic estimate, and what a tuner found."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from scheduler.delegates.opencl.device import Traits

Parameters = Mapping[str, int]

#: Bytes of weights that arrive from beyond the second cache in a cycle.
WEIGHT_BYTES_A_CYCLE = 4.0
#: Work-items that a large GPU runs at once.
GPU_WORK_ITEMS = 65536
#: Pixels and blocks of a tile that are tried.
TILE_PIXELS, TILE_BLOCKS = (1, 2, 3, 4, 5, 6, 8, 10), (1, 2, 3, 4, 8)


@dataclass(frozen=True)
class Options:
    """Switches of the compilation, for experiments and for devices on which another choice is quicker."""

    winograd: str = "auto"  # Where to use Winograd's algorithm: `auto` compares it with the direct one.
    fuse: bool = True  # Merge activations and additions into convolutions.
    #: `regions` checks bounds where a tile meets the border alone; `check` everywhere; `pad` copies the input into a padded image.
    borders: str = "regions"
    loads: str = "merged"  # `merged` shares loads between neighbouring pixels of a depthwise convolution; `single` loads each for itself.
    #: How inputs of a convolution are loaded: `vector`, `scalar`, or `auto`, which takes the faster one on the device.
    access: str = "auto"
    unroll: bool = True  # Whether loops over lanes and columns of a window are unrolled.
    schedule: str = "best"  # `best` ranks tiles; `tvm` takes the template that paper 004 gives as its example, VH 1, VW 4, VC 4.
    tuned: bool = True  # Take schedules and work-groups that were tuned, by the user or for the package.
    #: Arithmetic for tensors in half precision: `half`, `float`, or `auto` for half where the device states `cl_khr_fp16`.
    arithmetic: str = "auto"


@dataclass(frozen=True)
class KernelProblem:
    """Facts that decide which schedule of a kernel is quickest."""

    kernel: str  # Name of the kernel.
    shape: str  # In words; equal words mean equal work.
    pixels: int  # Output pixels of all images.
    blocks: int  # Blocks of output channels.
    depth: int  # Multiply-accumulates of one output element.
    batch: int = 1  # Products of one launch, 36 for Winograd's.
    #: Multiply-accumulates of one output element by blocks of a tile, where it depends on them.
    depths: Mapping[int, int] = field(default_factory=dict)


@dataclass
class Schedules:
    """The schedule of each problem: what was tuned, else the best by the ranking."""

    traits: Traits  # Of the device.
    tuned: Mapping[tuple[str, str], Parameters] = field(default_factory=dict)  # Parameters by problem, from a tuner's cache.
    #: The problems that were asked for so far, with their candidates, the one that is taken first.
    problems: list[tuple[KernelProblem, list[Parameters]]] = field(default_factory=list)

    def parameters(self, problem: KernelProblem, candidates: Sequence[Parameters]) -> Parameters:
        """Return the parameters to compile with.

        Args:
            candidates: Legal parameters, the best first.
        """
        chosen = self.tuned.get((problem.kernel, problem.shape))
        ordered = sorted(candidates, key=lambda candidate: dict(candidate) != chosen)
        self.problems.append((problem, ordered))
        return ordered[0]

    @cached_property
    def tiles(self) -> tuple[tuple[int, int], ...]:
        """Tiles (VW pixels, VC blocks) whose sums stay in registers, with those for weights and inputs."""
        limit = self.traits.registers
        fits = [(vw, vc) for vw in TILE_PIXELS for vc in TILE_BLOCKS if vw * vc + vc + (1 if self.traits.cpu else vw) <= limit]
        return tuple(fits)


def rank_tiles(schedules: Schedules, problem: KernelProblem, legal: Callable[[int, int], bool] = lambda vw, vc: True) -> list[Parameters]:
    """Return the tiles of a convolution, the one with the least estimated time first, each in both orders of the grid."""
    traits = schedules.traits
    estimates = [
        (tile_cycles(traits, problem, vw, vc), -vw, -vc)
        for vw, vc in schedules.tiles
        if vw <= problem.pixels and vc <= max(1, problem.blocks) and legal(vw, vc)
    ]
    orders = (1, 0) if traits.cpu else (0, 1)
    ordered = [{"VW": -vw, "VC": -vc, "CHANNELS_FIRST": first} for _, vw, vc in sorted(estimates) for first in orders]
    return list[Parameters](ordered) or [{"VW": 1, "VC": 1, "CHANNELS_FIRST": 0}]


def least_cycles(schedules: Schedules, problem: KernelProblem) -> float:
    """Return the estimated time of the best tile, with that of reading the weights once."""
    best = min(
        tile_cycles(schedules.traits, problem, vw, vc)
        for vw, vc in schedules.tiles
        if vw <= problem.pixels and vc <= max(1, problem.blocks)
    )
    lanes = schedules.traits.lanes
    weight_bytes = problem.batch * problem.blocks * lanes * problem.depth * 4
    return best + weight_bytes / WEIGHT_BYTES_A_CYCLE


def tile_cycles(traits: Traits, problem: KernelProblem, vw: int, vc: int) -> float:
    """Return the estimated time of a convolution in tiles of VW pixels and VC blocks: learned for the device's kind, else analytic."""
    costs = COSTS.get(traits.id)
    if costs is None:
        return analytic_cycles(traits, problem, vw, vc)
    return costs.cycles(problem, vw, vc, traits.local[1])


def analytic_cycles(traits: Traits, problem: KernelProblem, vw: int, vc: int) -> float:
    """Return an estimate for devices that nothing was learned on.

    For each input channel a tile of VW pixels and VC blocks does VW·VC vector
    multiply-adds and VW + VC loads. The estimate counts the slower of the two
    (about 2 of each a cycle on a CPU, one where weights stream from the second
    cache), the latency of a multiply-add where there are too few sums to hide
    it, and the tiles at the end that are only partly used; the numbers were
    fitted to 18 tiles on a Zen 4. On a GPU too few work-items leave it idle.
    """
    across, down = -(-problem.pixels // vw), -(-problem.blocks // vc)
    depth = problem.depths.get(vc, problem.depth)
    if traits.cpu:
        cycles = max(0.52 * vw * vc, 0.56 * (vw + vc), 1.05 * vc, 4.3)
        # Setting up a tile, and writing it.
        return problem.batch * across * down * (cycles * depth + 5 * vw * vc + 15)
    waves = max(1.0, across * down * problem.batch / GPU_WORK_ITEMS)
    return waves * (max(vw * vc, 8.0 * (vw + vc) / traits.lanes) * depth + 40)


@dataclass(frozen=True)
class TileCosts:
    """Costs of tiles on a kind of device, learned from measurements by ``experiments/opencl_tuning/cost_model.py``."""

    steps: Mapping[tuple[int, int], float]  # Cycles of a tile of VW pixels and VC blocks for one input channel.
    load: float  # Cycles in which one block's weights for one input channel come into the first cache, once a work-group.

    def cycles(self, problem: KernelProblem, vw: int, vc: int, group: int) -> float:
        """Return the estimated time."""
        across, down = -(-problem.pixels // vw), -(-problem.blocks // vc)
        channel = across * self.steps[vw, vc] + -(-across // group) * vc * self.load
        return problem.batch * down * problem.depths.get(vc, problem.depth) * channel


def read_costs() -> dict[str, TileCosts]:
    """Return the learned costs by kind of device."""
    kinds = json.loads(Path(__file__).with_name("costs.json").read_text())
    return {kind: TileCosts({(vw, vc): cycles for vw, vc, cycles in entry["steps"]}, entry["load"]) for kind, entry in kinds.items()}


COSTS = read_costs()
