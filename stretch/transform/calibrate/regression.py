"""Ridge regression from sums of products, whatever the number of images."""

import torch

#: Rows whose products are summed in fp32.
_CHUNK = 8192


class Products:
    """Sums of products of inputs with inputs, for each group of channels by itself, in float64.

    Args:
        groups: Groups; 1 for a dense layer.
        inputs: Inputs of each.
        device: Where the sums are.

    Attributes:
        count: Rows added.
    """

    def __init__(self, groups: int, inputs: int, device: torch.device) -> None:
        self._products = torch.zeros(groups, inputs, inputs, dtype=torch.float64, device=device)
        self._inputs = torch.zeros(groups, inputs, dtype=torch.float64, device=device)
        self.count = 0

    def add(self, x: torch.Tensor) -> None:
        """Add rows, (rows, groups · inputs)."""
        for rows in x.split(_CHUNK):
            own = rows.reshape(len(rows), len(self._products), -1).movedim(1, 0)
            # Products of fp32 numbers summed over some thousand rows lose nothing that matters; the sum over those is float64.
            self._products += own.mT @ own
            self._inputs += own.sum(1)
        self.count += len(x)

    def mean(self) -> torch.Tensor:
        """Of each input, (groups, inputs)."""
        return self._inputs / self.count

    def covariance(self, centred: bool = True) -> torch.Tensor:
        """Mean products, (groups, inputs, inputs), of the inputs less their means if they are to be centred."""
        products = self._products / self.count
        if not centred:
            return products
        mean = self.mean()
        return products - mean[:, :, None] * mean[:, None]


class Regression:
    """Least squares of outputs on inputs, for each group of channels by itself.

    Only sums are held, in float64: of products of inputs with inputs, of inputs
    with outputs, and of both.

    Args:
        groups: Independent regressions; 1 for a dense layer.
        inputs: Inputs of each.
        outputs: Outputs of each.
        device: Where the sums are.
    """

    def __init__(self, groups: int, inputs: int, outputs: int, device: torch.device) -> None:
        self._seen = Products(groups, inputs, device)
        self._mixed = torch.zeros(groups, inputs, outputs, dtype=torch.float64, device=device)
        self._outputs = torch.zeros(groups, outputs, dtype=torch.float64, device=device)

    def add(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Add rows.

        Args:
            x: (rows, groups · inputs).
            y: (rows, groups · outputs).
        """
        self._seen.add(x)
        groups = len(self._mixed)
        for own_x, own_y in zip(x.split(_CHUNK), y.split(_CHUNK), strict=True):
            a, b = (t.reshape(len(t), groups, -1).movedim(1, 0) for t in (own_x, own_y))
            self._mixed += a.mT @ b
            self._outputs += b.sum(1)

    def solve(self, ridge: float, prior: torch.Tensor, intercept: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
        """The weights W nearest to the outputs, drawn towards `prior` where the inputs say little.

        Minimises mean|y − W x − b|² + λ|W − prior|², with λ the mean square of an input times
        `ridge` + inputs / (10 · rows): few rows leave more of the prior.

        Args:
            ridge: Relative weight of the penalty.
            prior: (groups · outputs, inputs).
            intercept: Whether there is a b; else it is zero.

        Returns:
            W like the prior and b (groups · outputs,), both float32.
        """
        count = self._seen.count
        mean_x, mean_y = self._seen.mean(), self._outputs / count
        if not intercept:
            mean_x, mean_y = torch.zeros_like(mean_x), torch.zeros_like(mean_y)
        groups, inputs, outputs = self._mixed.shape
        covariance = self._seen.covariance(intercept)
        mixed = self._mixed / count - mean_x[:, :, None] * mean_y[:, None]
        share = ridge + (inputs / (10 * count) if ridge else 0.0)
        penalty = share * covariance.diagonal(dim1=1, dim2=2).mean(1).clamp_min(1e-12)
        start = prior.double().reshape(groups, outputs, inputs).mT
        eye = penalty[:, None, None] * torch.eye(inputs, dtype=torch.float64, device=penalty.device)
        # Solved for the change, so that a prior that fits already stays as it is.
        weight = start + torch.linalg.solve(covariance + eye, mixed - covariance @ start)
        bias = mean_y - (mean_x[:, None] @ weight)[:, 0]
        return weight.mT.reshape(groups * outputs, inputs).float(), bias.reshape(-1).float()
