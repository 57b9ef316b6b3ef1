"""Train the networks of equal latency: `python -m experiments.equal_latency.run --data cifar.npz --out FOLDER --seconds 500`.

Workers share the GPUs and take jobs, a network and a seed each, from one queue. FOLDER has a file a job, written at every epoch; a job that
is finished there is not run again, one that was broken off starts again. See the README for the images and for Torch-Pruning.
"""

import argparse
import itertools
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.equal_latency.ideas import IDEAS, change, designed
from experiments.equal_latency.networks import FINE_TUNED, RECORD, SPEEDS, TRAINED, TRIED, graph_of, plain, whole
from experiments.equal_latency.parents import OTHERS, PARENTS, RESNETS
from experiments.records import Row, read_record

if TYPE_CHECKING:
    from torch import nn

    from stretch.train.images import ImageSet

#: All networks have the recipe of recipes/resnet56_cifar10.toml; the learning rate grows with the batch.
RATE, DECAY = 0.2 / 256, 5e-4
WARMUP, EVALUATE = 0.1, 5
SEEDS = (0, 1, 2)
#: Record of finished runs, which are not repeated.
RESULTS = RECORD.with_name("h200.json")
#: Plain networks, of which only the best one counts.
PLAIN = ("shallower", "narrower", "shallower and narrower")
#: Contenders, speeds and originals by importance: all seeds of a group are trained before the next group.
ORDER = (
    (("parent", "branches", "shallower"), (1.5, 1.0, 1.25), RESNETS),
    (("parent", "branches", "shallower"), (1.5, 1.0), OTHERS),
    (("pruned", *FINE_TUNED), (TRIED,), RESNETS),
    (("branches", "shallower"), (1.8,), RESNETS),
    (("pruned",), (1.25,), RESNETS),
    ((*PLAIN, "stage-wise"), (1.5, 1.25), RESNETS),
    (("parent", "branches", "shallower"), (1.25,), OTHERS),
    (("normalised join",), (1.5, 1.25), RESNETS),
    (("stage-wise", *PLAIN, "pruned"), (1.8,), RESNETS),
    (("whole width", *IDEAS), (1.5,), RESNETS),
    (("branches", "stage-wise", *PLAIN, "whole width"), SPEEDS, OTHERS),
)


@dataclass(frozen=True)
class Job:
    """One training."""

    parent: str  # Name of the original.
    built: str  # Definition of the network, as in the record of networks.
    seed: int
    epochs: int
    batch: int = 512

    @property
    def key(self) -> str:
        """Name of the network; the same network may be in the comparisons of several devices and speeds."""
        return f"{self.parent}-{sha256(self.built.encode()).hexdigest()[:10]}"

    def file(self, out: Path, end: str = "json") -> Path:
        """Return the file of the job's result."""
        return out / f"{self.key}-{self.seed}-{self.epochs}-{self.batch}.{end}"

    def finished(self, out: Path) -> bool:
        """Return whether the job's result is complete."""
        file = self.file(out)
        return file.exists() and json.loads(file.read_text())["done"]

    @property
    def teacher(self) -> "Job | None":
        """Training whose weights this one starts from; None if there is none."""
        if not {"pruned", "fine_tuned"} & json.loads(self.built).keys():
            return None
        return Job(self.parent, whole(self.parent), self.seed, self.epochs, self.batch)


def jobs_of(rows: Sequence[Row], epochs: int, batch: int, only: str = "") -> list[Job]:
    """Return all jobs, the most important first; `only` selects networks whose names contain it."""
    result: dict[Job, None] = {}
    for contenders, speeds, parents in ORDER:
        for seed, speed, row in itertools.product(SEEDS, speeds, rows):
            selected = row["contender"] in contenders and row["parent"] in parents
            if selected and row["speed"] == speed and only in str(row["network"]):
                result[Job(str(row["parent"]), str(row["built"]), seed, epochs, batch)] = None
    return list(result)


def recorded(path: Path, epochs: int, batch: int) -> dict[tuple[str, int], float]:
    """Return the top-1 % of the runs in a record by network and seed; none if its epochs or batch differ."""
    record = read_record(path) if path.exists() else None
    if record is None or not record.notes[0].startswith(recipe_note(epochs, batch)):
        return {}
    return {(str(row["run"]), int(row["seed"] or 0)): float(row["top-1 %"] or 0) for row in record.tables["runs"]}


def recipe_note(epochs: int, batch: int) -> str:
    """Return the beginning of the first note of a record, which describes the training."""
    return f"{epochs} epochs from scratch, batch {batch}, "


def network(job: Job, out: Path) -> "nn.Module":
    """Return the network of a job before its training: untrained, or made from the trained original."""
    from stretch.network.capture import capture
    from stretch.train.prepare import initialise
    from stretch.transform.build import build
    from stretch.transform.model import BranchedModel

    built = json.loads(job.built)
    if built.pop("pruned", False):
        return pruned(job, tuple(built["widths"]), out)
    if job.built == whole(job.parent):
        return initialise(PARENTS[job.parent].make())
    fine_tuned, graph = built.pop("fine_tuned", False), graph_of(job.parent, TRAINED)
    design = plain(graph, **built) if "widths" in built else designed(json.dumps(built))
    if fine_tuned:
        return build(capture(trained_original(job, out), graph.input.shape, job.parent), design)
    model = initialise(BranchedModel(graph, design))
    return change(model, built["idea"]) if "idea" in built else model


def trained_original(job: Job, out: Path) -> "nn.Module":
    """Return the original that a job starts from, with its trained weights."""
    from safetensors.torch import load_file

    assert job.teacher is not None
    module = PARENTS[job.parent].make()
    weights = load_file(job.teacher.file(out, "safetensors"))
    module.load_state_dict({name: value.float() if value.is_floating_point() else value for name, value in weights.items()})
    return module


def pruned(job: Job, widths: tuple[int, ...], out: Path) -> "nn.Module":
    """Return a trained original pruned by Torch-Pruning to these numbers of channels per stage, smallest norms first."""
    import torch
    import torch_pruning

    module: Any = trained_original(job, out)
    shares = [1 - width / all_of_it for width, all_of_it in zip(widths, PARENTS[job.parent].widths, strict=True)]
    stages = ((module.conv1, shares[0]), *zip(module.stages, shares, strict=True))
    ratios = {layer: share for stage, share in stages for layer in stage.modules() if isinstance(layer, torch.nn.Conv2d)}
    norms, image = torch_pruning.importance.MagnitudeImportance(p=2), torch.zeros(1, 3, TRAINED, TRAINED)
    kept = {"ignored_layers": [module.fc], "pruning_ratio": 0.0, "pruning_ratio_dict": ratios}
    torch_pruning.pruner.BasePruner(module.eval(), image, importance=norms, **kept).step()
    assert tuple(stage[0].conv2.out_channels for stage in module.stages) == widths
    return module


def trained(job: Job, sets: "Sequence[ImageSet]", out: Path) -> Iterator[None]:
    """Train one network, yielding after every step, and write its result after every epoch."""
    import torch
    from safetensors.torch import save_file

    from experiments.gpu import facts
    from stretch.train.loop import Run
    from stretch.train.recipe import TrainConfig

    start = time.perf_counter()
    torch.manual_seed(job.seed)
    recipe = {"batch": job.batch, "learning_rate": RATE * job.batch, "weight_decay": DECAY}
    config = TrainConfig(epochs=job.epochs, warmup_epochs=WARMUP * job.epochs, seed=job.seed, **recipe)
    run = Run(network(job, out).to(sets[0].labels.device), sets, config)
    header = {"key": job.key, "parent": job.parent, "built": job.built, "seed": job.seed, "epochs": job.epochs, "recipe": recipe} | facts()
    for epoch in run.steps(EVALUATE):
        if epoch is not None:
            done = epoch.epoch == job.epochs
            if done and job.built == whole(job.parent):
                state = run.model.state_dict().items()
                half = {name: (value.half() if value.is_floating_point() else value).contiguous() for name, value in state}
                _write(job.file(out, "safetensors"), lambda path, half=half: save_file(half, path))
            result = header | {"done": done, "seconds": time.perf_counter() - start, "log": [asdict(epoch) for epoch in run.history]}
            result |= {"accuracy": run.history[-1].accuracy} if done else {}
            _write(job.file(out), lambda path, result=result: path.write_text(json.dumps(result)))
        yield


def _write(path: Path, write: Any) -> None:
    """Write a file, completely or not at all."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    write(partial)
    partial.replace(path)


def claim(jobs: Sequence[Job], out: Path) -> tuple[Job | None, bool]:
    """Return the next unclaimed job, and whether some jobs wait for the weights of an unfinished one."""
    waits = False
    for job in jobs:
        if job.file(out, "claim").exists():
            continue
        if job.teacher is not None and not job.teacher.file(out, "safetensors").exists():
            waits = waits or job.teacher in jobs
            continue
        try:
            os.close(os.open(job.file(out, "claim"), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        return job, True
    return None, waits


def work(number: int, jobs: Sequence[Job], data: Path, out: Path, images: int, end: float) -> None:
    """Run jobs until none is left or the time is over; a job starts only if it would end in time, as the last one took.

    Args:
        number: Number of the worker; workers divide the GPUs.
    """
    import torch

    from stretch.train.images import load_arrays

    device = torch.device("cuda", number % torch.cuda.device_count()) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    torch.backends.cudnn.benchmark = True
    torch.set_num_threads(1)
    sets = [part.subset(images).to(device) for part in load_arrays(data, 10)]
    took = 0.0
    while time.time() + took < end:
        job, waits = claim(jobs, out)
        start = time.time()
        if job is not None:
            for _ in trained(job, sets, out):
                if time.time() > end:
                    return
            took = time.time() - start
        elif waits:
            time.sleep(1)
        else:
            return


def main() -> int:
    """Run the queue."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="what experiments.cifar_accuracy.prepare wrote")
    parser.add_argument("--out", type=Path, required=True, help="folder of results")
    parser.add_argument("--networks", type=Path, default=RECORD)
    parser.add_argument("--only", default="", help="what names of networks must contain")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--images", type=int, default=1 << 20, help="images of each set, at most")
    parser.add_argument("--workers", type=int, default=8, help="processes, on all GPUs together")
    parser.add_argument("--seconds", type=float, default=1e9, help="jobs that still run then are broken off")
    options = parser.parse_args()
    start = time.time()
    options.out.mkdir(parents=True, exist_ok=True)
    for stale in options.out.glob("*.claim"):
        stale.unlink()
    jobs = jobs_of(read_record(options.networks).tables["networks"], options.epochs, options.batch, options.only)
    recorded_runs = recorded(RESULTS, options.epochs, options.batch)
    new = (job for job in jobs if (job.key, job.seed) not in recorded_runs)
    # pruned and fine-tuned networks start from the weights of originals, which are then trained again
    needed = dict.fromkeys(job for entry in new for job in (entry.teacher, entry) if job is not None)
    waiting = [job for job in needed if not job.finished(options.out)]
    context = multiprocessing.get_context("spawn")
    shared = (waiting, options.data, options.out, options.images, start + options.seconds)
    workers = [context.Process(target=work, args=(number, *shared)) for number in range(min(options.workers, len(waiting)))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    done = [job for job in waiting if job.finished(options.out)]
    failed = sum(worker.exitcode != 0 for worker in workers)
    sys.stderr.write(f"{len(done)} of {len(waiting)} jobs in {time.time() - start:.0f} s, {failed} workers failed\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
