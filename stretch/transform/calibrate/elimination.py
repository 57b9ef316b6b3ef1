"""Backward elimination of a linear layer's inputs by least squares."""

import torch

#: Maximum number of rounds of removal.
ROUNDS = 64


class Elimination:
    """A linear layer whose inputs are removed, with the remaining weights refitted each time.

    The removal of some inputs costs the squared error that is left after the rest is refitted, which is known without
    refitting: wᵀ [H⁻¹]⁻¹ w, with that part of the inverse of the inputs' covariance H which is theirs (optimal brain surgeon: Hassibi and Stork 1993; for
    channels of a network the criterion of ThiNet, Luo et al. 2017, and of He et al. 2017).

    Args:
        covariance: Of the inputs, (inputs, inputs) float64.
        weight: (outputs, inputs).
        ridge: Penalty, relative to the mean variance of an input.
        size: What costs are relative to; the variance of the outputs by default.
    """

    def __init__(self, covariance: torch.Tensor, weight: torch.Tensor, ridge: float, size: float | None = None) -> None:
        self._weight = weight.double()
        if size is None:
            size = float(((self._weight @ covariance) * self._weight).sum())
        self._size = max(size, 1e-30)
        self._inverse = _inverse(covariance, ridge * covariance.diagonal().mean().clamp_min(1e-12))

    def costs(self, units: torch.Tensor) -> torch.Tensor:
        """Error by the removal of each single unit, relative to the variance of the outputs."""
        weight = self._weight[:, units].movedim(0, 2)
        blocks = self._inverse[units[:, :, None], units[:, None, :]]
        return (weight * torch.linalg.solve(blocks, weight)).sum((1, 2)) / self._size

    def remove(self, inputs: torch.Tensor) -> None:
        """Remove these inputs and refit the rest."""
        rows = self._inverse[inputs]
        gain = torch.linalg.solve(rows[:, inputs], rows)
        self._weight -= self._weight[:, inputs] @ gain
        self._inverse -= rows.mT @ gain


def keep_units(count: int, keep: int, readers: list[tuple[Elimination, torch.Tensor]]) -> torch.Tensor:
    """Units that remain after removing one after the other those with the smallest total error of all readers."""
    alive = torch.arange(count, device=readers[0][1].device)
    while len(alive) > keep:
        costs = torch.stack([layer.costs(inputs[alive]) for layer, inputs in readers]).sum(0)
        gone = costs.argsort()[: min(len(alive) - keep, -(-count // ROUNDS))]
        for layer, inputs in readers:
            layer.remove(inputs[alive[gone]].flatten())
        stays = torch.ones(len(alive), dtype=torch.bool, device=alive.device)
        stays[gone] = False
        alive = alive[stays]
    return alive


def conditional_covariance(covariance: torch.Tensor, known: torch.Tensor, ridge: float) -> torch.Tensor:
    """The conditional covariance given some of the variables.

    Args:
        covariance: (n, n) float64.
        known: Which, (m,) int64, each once.
        ridge: Penalty, relative to the mean variance.
    """
    if not len(known):
        return covariance
    penalty = ridge * covariance.diagonal().mean().clamp_min(1e-12)
    eye = torch.eye(len(known), dtype=covariance.dtype, device=covariance.device)
    rows = covariance[known]
    return covariance - rows.mT @ torch.linalg.solve(rows[:, known] + penalty * eye, rows)


def _inverse(covariance: torch.Tensor, penalty: torch.Tensor) -> torch.Tensor:
    """Of a covariance with a penalty on its diagonal."""
    triangle, failed = torch.linalg.cholesky_ex(
        covariance + penalty * torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
    )
    if not failed:
        return torch.cholesky_inverse(triangle)
    # rounding of fp32 products may make variances slightly negative
    values, vectors = torch.linalg.eigh((covariance + covariance.mT) / 2)
    return (vectors / (values.clamp_min(0) + penalty)) @ vectors.mT
