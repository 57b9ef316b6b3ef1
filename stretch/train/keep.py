"""Files of a run: its log, checkpoints, the best and the last weights."""

from collections.abc import Mapping

import torch
from torch import nn

from stretch.train.checkpoint import save_checkpoint
from stretch.train.folder import BEST, LAST, Log, RunFolder
from stretch.train.loop import Epoch, Run
from stretch.train.memory import memory_mib
from stretch.train.recipe import KeepConfig
from stretch.train.step import unwrapped


class Keeper:
    """Writes into a run's folder; for the first process.

    Args:
        folder: Of the run.
        run: The run.
        keep: What to write, and how often.
        identity: Fingerprints that a checkpoint must share for resuming.
        best: Highest accuracy, or agreement without labels, so far; None before the first evaluation.
    """

    def __init__(self, folder: RunFolder, run: Run, keep: KeepConfig, identity: Mapping[str, str], best: float | None) -> None:
        self.folder, self.run, self.keep, self.identity, self.best = folder, run, keep, dict(identity), best
        self._log = Log(folder, keep.tensorboard)
        self._log.restart(run.history.epochs)
        self._steps = 0

    def stepped(self) -> None:
        """Called after a step within an epoch."""
        self._steps += 1
        if self.keep.steps and self._steps % self.keep.steps == 0:
            self.run.check()
            self.run.check_weights()
            self._checkpoint(self.run.done)

    def finished(self, row: Epoch) -> None:
        """Called after an epoch."""
        self._steps += 1
        run = self.run
        speed, memory = len(run.train_set) / row.seconds, memory_mib(run.world.device)
        self._log.add(row, images_per_second=speed, memory_mib=memory, rate=float(run.step.rate))
        if row.score is not None and (self.best is None or row.score > self.best):
            self.best = row.score
            self.folder.weights(BEST, kept_weights(run))
        if row.epoch % self.keep.every == 0 or row.epoch == run.config.epochs:
            self._checkpoint(0)

    def ended(self) -> None:
        """The run is over."""
        self.folder.weights(LAST, kept_weights(self.run))

    def close(self) -> None:
        """Let go of the log."""
        self._log.close()

    def _checkpoint(self, done: int) -> None:
        save_checkpoint(self.folder.checkpoint(self.run.epoch, done), self.run, self.identity, self.best)
        self.folder.rotate(self.keep.last)


def kept_weights(run: Run) -> dict[str, torch.Tensor]:
    """The weights to use: the moving average if the run has one."""
    network: nn.Module = unwrapped(run.model)
    if run.step.mean is None:
        return dict(network.state_dict())
    run.step.mean.swap()
    try:
        return {name: value.detach().clone() for name, value in network.state_dict().items()}
    finally:
        run.step.mean.swap()
