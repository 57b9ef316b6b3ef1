"""Backward elimination of a linear layer's inputs by least squares."""

import torch

#: Maximum number of rounds of removal.
ROUNDS = 64


class Elimination:
    """A linear layer whose inputs are removed, with the remaining weights refitted each time.

    The removal of some inputs costs the squared error that is left after the rest is refitted, which is known without
    refitting: wᵀ [H⁻¹]⁻¹ w, with that part of the inverse of the inputs' covariance H which is theirs (optimal brain surgeon: Hassibi and Stork 1993; for
    channels of a network the criterion of ThiNet, Luo et al. 2017, and of He et al. 2017).

    The inverse stays as it is, and may be shared: what removals take from it is kept as a factor with a row for each input that is gone.

    Args:
        covariance: Of the inputs, (inputs, inputs) float64.
        weight: (outputs, inputs).
        ridge: Penalty, relative to the mean variance of an input.
        size: What costs are relative to; the variance of the outputs by default.
        inverse: That of the covariance (`inverse_of`), where it is known.
    """

    def __init__(
        self, covariance: torch.Tensor, weight: torch.Tensor, ridge: float, size: float | None = None, inverse: torch.Tensor | None = None
    ) -> None:
        self._weight = weight.double()
        if size is None:
            size = float(((self._weight @ covariance) * self._weight).sum())
        self._size = max(size, 1e-30)
        self._inverse = inverse_of(covariance, ridge) if inverse is None else inverse
        # the inverse as it is now is `_inverse` - `_factor`ᵀ `_factor`
        self._factor = self._inverse.new_empty(0, len(covariance))
        # diagonal blocks of that for the units last asked about, and where the block of a unit's first input lies
        self._units, self._blocks = torch.empty(0, 0, dtype=torch.long), self._inverse.new_empty(0)
        self._place = torch.full((len(covariance),), -1, device=covariance.device)

    def costs(self, units: torch.Tensor) -> torch.Tensor:
        """Error by the removal of each single unit, relative to the variance of the outputs."""
        weight = self._weight[:, units].movedim(0, 2)
        return (weight * torch.linalg.solve(self._blocks_of(units), weight)).sum((1, 2)) / self._size

    def _blocks_of(self, units: torch.Tensor) -> torch.Tensor:
        """The part of the inverse that is each unit's own, (units, inputs of each, inputs of each)."""
        places = self._place[units[:, 0]]
        if self._units.shape[1:] != units.shape[1:] or bool((places < 0).any()):
            self._units = units
            self._blocks = self._inverse[units[:, :, None], units[:, None, :]] - _products(self._factor, units)
            self._place.fill_(-1)
            places = torch.arange(len(units), device=units.device)
            self._place[units[:, 0]] = places
        return self._blocks[places]

    def remove(self, inputs: torch.Tensor) -> None:
        """Remove these inputs and refit the rest."""
        rows = self._inverse[inputs] - self._factor[:, inputs].mT @ self._factor
        block = (rows[:, inputs] + rows[:, inputs].mT) / 2
        triangle, failed = torch.linalg.cholesky_ex(block)
        if failed:
            # rounding may leave a block that is a little less than positive
            values, vectors = torch.linalg.eigh(block)
            triangle = torch.linalg.qr((vectors * values.clamp_min(1e-12 * values.max()).sqrt()).mT).R.mT
        factor = torch.linalg.solve_triangular(triangle, rows, upper=False)
        self._weight -= self._weight[:, inputs] @ torch.linalg.solve_triangular(triangle.mT, factor, upper=True)
        self._factor = torch.cat((self._factor, factor))
        if len(self._units):
            self._blocks -= _products(factor, self._units)


def _products(factor: torch.Tensor, units: torch.Tensor) -> torch.Tensor:
    """Diagonal blocks of `factor`ᵀ `factor` for units of inputs."""
    columns = factor[:, units].movedim(0, 2)
    return columns @ columns.mT


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


def inverse_of(covariance: torch.Tensor, ridge: float) -> torch.Tensor:
    """Of a covariance with a penalty on its diagonal, `ridge` times the mean variance."""
    penalty = ridge * covariance.diagonal().mean().clamp_min(1e-12)
    triangle, failed = torch.linalg.cholesky_ex(
        covariance + penalty * torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
    )
    if not failed:
        return torch.cholesky_inverse(triangle)
    # rounding of fp32 products may make variances slightly negative
    values, vectors = torch.linalg.eigh((covariance + covariance.mT) / 2)
    return (vectors / (values.clamp_min(0) + penalty)) @ vectors.mT
