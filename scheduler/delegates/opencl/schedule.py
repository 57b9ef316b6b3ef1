"""Template parameters of a kernel: candidates, their ranking by a learned or an analytic estimate, and the tuner's results."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from scheduler.delegates.opencl.device import Traits

Parameters = Mapping[str, int]

#: Bytes of weights that arrive from beyond the second-level cache per cycle.
WEIGHT_BYTES_A_CYCLE = 4.0
#: Number of work-items that a large GPU runs at once.
GPU_WORK_ITEMS = 65536
#: Numbers of pixels and blocks of the candidate tiles.
TILE_PIXELS, TILE_BLOCKS = (1, 2, 3, 4, 5, 6, 8, 10), (1, 2, 3, 4, 8)


@dataclass(frozen=True)
class Options:
    """Options of the compilation, for experiments and for devices on which other choices are faster."""

    winograd: str = "auto"  # Where to use Winograd's algorithm: `auto` compares it with direct convolution.
    fuse: bool = True  # Merge activations and additions into convolutions.
    #: `regions` checks bounds only where a tile meets the border; `check` everywhere; `pad` copies the input into a padded image.
    borders: str = "regions"
    loads: str = "merged"  # Loads of a depthwise convolution: `merged` shares them between neighbouring pixels, `single` does not.
    #: Loads of a convolution's inputs: `vector`, `scalar`, or `auto` for the faster one on the device.
    access: str = "auto"
    unroll: bool = True  # Whether loops over lanes and window columns are unrolled.
    schedule: str = "best"  # `best` ranks tiles; `tvm` uses the template of paper 004's example, VH 1, VW 4, VC 4.
    tuned: bool = True  # Use schedules and work-groups tuned by the user or shipped with the package.
    #: Arithmetic for tensors in half precision: `half`, `float`, or `auto` for half where the device reports `cl_khr_fp16`.
    arithmetic: str = "auto"


@dataclass(frozen=True)
class KernelProblem:
    """Facts that decide which schedule of a kernel is fastest."""

    kernel: str  # Name of the kernel.
    shape: str  # Shape in words; equal words mean equal work.
    pixels: int  # Output pixels of all images.
    blocks: int  # Number of blocks of output channels.
    depth: int  # Multiply-accumulates per output element.
    batch: int = 1  # Products per launch, 36 for Winograd's algorithm.
    #: Multiply-accumulates per output element by blocks of a tile, if they differ.
    depths: Mapping[int, int] = field(default_factory=dict)


@dataclass
class Schedules:
    """The schedule of each problem: the tuned one, else the best of the ranking."""

    traits: Traits  # Traits of the device.
    tuned: Mapping[tuple[str, str], Parameters] = field(default_factory=dict)  # Parameters by problem, from a tuner's cache.
    #: Problems requested so far, with their candidates, the chosen one first.
    problems: list[tuple[KernelProblem, list[Parameters]]] = field(default_factory=list)

    def parameters(self, problem: KernelProblem, candidates: Sequence[Parameters]) -> Parameters:
        """Return the parameters to compile with.

        Args:
            candidates: Legal parameters, best first.
        """
        chosen = self.tuned.get((problem.kernel, problem.shape))
        ordered = sorted(candidates, key=lambda candidate: dict(candidate) != chosen)
        self.problems.append((problem, ordered))
        return ordered[0]

    @cached_property
    def tiles(self) -> tuple[tuple[int, int], ...]:
        """Tiles (VW pixels, VC blocks) whose sums, weights and inputs fit into the registers."""
        limit = self.traits.registers
        fits = [(vw, vc) for vw in TILE_PIXELS for vc in TILE_BLOCKS if vw * vc + vc + (1 if self.traits.cpu else vw) <= limit]
        return tuple(fits)


def rank_tiles(schedules: Schedules, problem: KernelProblem, legal: Callable[[int, int], bool] = lambda vw, vc: True) -> list[Parameters]:
    """Return the tiles of a convolution, shortest estimated time first, each with both grid orders."""
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
    """Return the estimated cycles of the best tile, plus the cycles to read the weights once."""
    best = min(
        tile_cycles(schedules.traits, problem, vw, vc)
        for vw, vc in schedules.tiles
        if vw <= problem.pixels and vc <= max(1, problem.blocks)
    )
    lanes = schedules.traits.lanes
    weight_bytes = problem.batch * problem.blocks * lanes * problem.depth * 4
    return best + weight_bytes / WEIGHT_BYTES_A_CYCLE


def tile_cycles(traits: Traits, problem: KernelProblem, vw: int, vc: int) -> float:
    """Return the estimated cycles of a convolution in tiles of VW pixels and VC blocks: learned for the kind of device, else analytic."""
    costs = COSTS.get(traits.id)
    if costs is None:
        return analytic_cycles(traits, problem, vw, vc)
    return costs.cycles(problem, vw, vc, traits.local[1])


def analytic_cycles(traits: Traits, problem: KernelProblem, vw: int, vc: int) -> float:
    """Return an analytic estimate of the cycles, for devices without learned costs.

    For each input channel a tile of VW pixels and VC blocks does VW·VC vector
    multiply-adds and VW + VC loads. The estimate counts the slower of the two
    (about 2 of each per cycle on a CPU, one where weights stream from the
    second-level cache), the latency of a multiply-add where too few sums hide it,
    and the partly used tiles at the end. The numbers were fitted to 18 tiles on
    a Zen 4. On a GPU too few work-items leave it idle.
    """
    across, down = -(-problem.pixels // vw), -(-problem.blocks // vc)
    depth = problem.depths.get(vc, problem.depth)
    if traits.cpu:
        cycles = max(0.52 * vw * vc, 0.56 * (vw + vc), 1.05 * vc, 4.3)
        # The constants are the costs of setting up a tile and writing it.
        return problem.batch * across * down * (cycles * depth + 5 * vw * vc + 15)
    waves = max(1.0, across * down * problem.batch / GPU_WORK_ITEMS)
    return waves * (max(vw * vc, 8.0 * (vw + vc) / traits.lanes) * depth + 40)


@dataclass(frozen=True)
class TileCosts:
    """Costs of tiles on a kind of device, learned from measurements by ``experiments/opencl_tuning/cost_model.py``."""

    steps: Mapping[tuple[int, int], float]  # Cycles per input channel of a tile of VW pixels and VC blocks.
    load: float  # Cycles to load the weights of one block and input channel into the first-level cache, once per work-group.

    def cycles(self, problem: KernelProblem, vw: int, vc: int, group: int) -> float:
        """Return the estimated cycles of `problem` in tiles of VW pixels and VC blocks, with `group` tiles of pixels per work-group."""
        across, down = -(-problem.pixels // vw), -(-problem.blocks // vc)
        channel = across * self.steps[vw, vc] + -(-across // group) * vc * self.load
        return problem.batch * down * problem.depths.get(vc, problem.depth) * channel


def read_costs() -> dict[str, TileCosts]:
    """Return the learned costs by kind of device."""
    kinds = json.loads(Path(__file__).with_name("costs.json").read_text())
    return {kind: TileCosts({(vw, vc): cycles for vw, vc, cycles in entry["steps"]}, entry["load"]) for kind, entry in kinds.items()}


COSTS = read_costs()
