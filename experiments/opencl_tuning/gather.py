"""Times every tile of every convolution of some networks, as a tuner without a ranking would: `python -m experiments.opencl_tuning.gather`.

A cost model is fitted to its output and judged with it; see `cost_model.py`.
"""

import argparse
import csv
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from experiments.opencl_networks.networks import NETWORKS, save_network
from scheduler.cores import available_cores, pinned
from scheduler.delegates.opencl.device import OpenDevice, open_device
from scheduler.delegates.opencl.graph import KernelGraph, fuse, read_graph, simplify
from scheduler.delegates.opencl.schedule import KernelProblem, Options, Parameters, Schedules
from scheduler.delegates.opencl.templates import lower
from scheduler.delegates.opencl.tuner import ScheduleTuner, single_node_graph

#: Networks that were not used for any constant of the cost model.
HELD_OUT = ("resnet18", "googlenet", "mobilenet_v3_large", "shufflenet_v2_x1_0", "regnet_y_800mf", "squeezenet1_1", "densenet121")
COLUMNS = ("network", "kernel", "shape", "pixels", "blocks", "depth", "batch", "VW", "VC", "CHANNELS_FIRST", "tile_depth", "ms")


def problems(graph: KernelGraph, device: OpenDevice) -> dict[tuple[str, str], tuple[KernelGraph, Options, KernelProblem, list[Parameters]]]:
    """Return every problem of a simplified and fused graph that has a choice of tiles, with its convolution alone and its candidates."""
    result: dict[tuple[str, str], tuple[KernelGraph, Options, KernelProblem, list[Parameters]]] = {}
    for node in graph.nodes:
        if node.op not in ("Conv", "Gemm"):
            continue
        for options in (Options(winograd="off"), Options(winograd="on")):
            one = single_node_graph(graph, node)
            copy = replace(one, nodes=list(one.nodes), constants=dict(one.constants), shapes=dict(one.shapes))
            schedules = Schedules(device.traits)
            lower(copy, device.traits.blocking(False), device.traits, options, schedules)
            for problem, candidates in schedules.problems:
                result.setdefault((problem.kernel, problem.shape), (one, options, problem, candidates))
    return result


def main(words: list[str] | None = None) -> None:
    """Measure and write a table with one row per tile."""
    parser = argparse.ArgumentParser(prog="python -m experiments.opencl_tuning.gather", description=__doc__)
    parser.add_argument("networks", nargs="*", default=[*NETWORKS, *HELD_OUT])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--core", type=int, default=available_cores()[-1])
    parser.add_argument("--out", type=Path, default=Path("tiles.csv"))
    options = parser.parse_args(words)
    done: set[tuple[str, str]] = set()
    with tempfile.TemporaryDirectory() as folder, pinned((options.core,)), options.out.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(COLUMNS)
        device = open_device((options.core,))
        tuner = ScheduleTuner(device, rounds=options.rounds)
        for network in options.networks:
            graph = read_graph(save_network(network, Path(folder)))
            simplify(graph)
            fuse(graph)
            todo = {key: value for key, value in problems(graph, device).items() if key not in done}
            for key, (single, switches, problem, candidates) in todo.items():
                for tile, ms in tuner.measure(single, switches, {}, key, candidates):
                    sizes = (problem.pixels, problem.blocks, problem.depth, problem.batch)
                    vc = tile.get("VC", 1)
                    depth = problem.depths.get(vc, problem.depth)
                    writer.writerow((network, *key, *sizes, tile["VW"], vc, tile["CHANNELS_FIRST"], depth, f"{ms:.5f}"))
                stream.flush()
            done.update(todo)
            sys.stderr.write(f"{network}: {len(todo)} problems\n")


if __name__ == "__main__":
    main()
