"""Ridge regression from sums of products, whatever the number of images."""

import torch

#: Rows whose products are summed in fp32, at most and at least, and numbers of them that stay in a processor's caches.
_MOST_ROWS, _LEAST_ROWS, _NUMBERS = 8192, 256, 2**22

#: Inputs whose products with themselves and what follows them are one matrix product.
_BLOCK = 192


class Products:
    """Sums of products of inputs with inputs, and with outputs, for each group of channels by itself, in float64.

    Args:
        groups: Groups; 1 for a dense layer.

    Attributes:
        count: Rows added.
    """

    def __init__(self, groups: int, inputs: int, device: torch.device, outputs: int = 0) -> None:
        #: Of inputs with inputs the upper triangle alone, by blocks, then those of inputs with outputs.
        self._products = torch.zeros(groups, inputs, inputs + outputs, dtype=torch.float64, device=device)
        self._sums = torch.zeros(groups, inputs + outputs, dtype=torch.float64, device=device)
        self.count = 0

    def add(self, *parts: torch.Tensor) -> None:
        """Add rows: (rows, groups · inputs), and (rows, groups · outputs) where there are outputs."""
        groups, inputs, width = self._products.shape
        chunk = min(_MOST_ROWS, max(_LEAST_ROWS, _NUMBERS // (groups * width)))
        for rows in zip(*(part.split(chunk) for part in parts), strict=True):
            grouped = [part.reshape(len(part), groups, -1) for part in rows]
            stacked = (torch.cat(grouped, 2) if len(grouped) > 1 else grouped[0]).movedim(1, 0)
            # Products of fp32 numbers summed over some thousand rows lose nothing that matters; the sum over those is float64.
            for start in range(0, inputs, _BLOCK):
                stop = min(start + _BLOCK, inputs)
                self._products[:, start:stop, start:] += stacked[:, :, start:stop].mT @ stacked[:, :, start:]
            self._sums += stacked.sum(1)
        self.count += len(parts[0])

    def mean(self) -> torch.Tensor:
        """Of each input and output, (groups, inputs + outputs)."""
        return self._sums / self.count

    def covariance(self, centred: bool = True) -> torch.Tensor:
        """Mean products, (groups, inputs, inputs + outputs), of numbers less their means if they are to be centred."""
        inputs = self._products.shape[1]
        products = self._products / self.count
        upper = products[:, :, :inputs].triu()
        products[:, :, :inputs] = upper + upper.triu(1).mT
        if not centred:
            return products
        mean = self.mean()
        return products - mean[:, :inputs, None] * mean[:, None]


class Regression:
    """Least squares of outputs on inputs, for each group of channels by itself.

    Only sums are held, in float64: of products of inputs with inputs, of inputs
    with outputs, and of both.

    Args:
        groups: Independent regressions; 1 for a dense layer.
    """

    def __init__(self, groups: int, inputs: int, outputs: int, device: torch.device) -> None:
        self._seen, self._inputs = Products(groups, inputs, device, outputs), inputs

    def add(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Add rows."""
        self._seen.add(x, y)

    def solve(self, ridge: float, prior: torch.Tensor, intercept: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
        """The weights W nearest to the outputs, drawn towards `prior` where the inputs say little.

        Minimises mean|y − W x − b|² + λ|W − prior|², with λ the mean square of an input times
        `ridge` + inputs / (10 · rows): few rows leave more of the prior.
        """
        count, inputs = self._seen.count, self._inputs
        mean_x, mean_y = self._seen.mean().tensor_split([inputs], 1)
        if not intercept:
            mean_x, mean_y = torch.zeros_like(mean_x), torch.zeros_like(mean_y)
        covariance, mixed = self._seen.covariance(intercept).tensor_split([inputs], 2)
        groups, _, outputs = mixed.shape
        share = ridge + (inputs / (10 * count) if ridge else 0.0)
        penalty = share * covariance.diagonal(dim1=1, dim2=2).mean(1).clamp_min(1e-12)
        start = prior.double().reshape(groups, outputs, inputs).mT
        eye = penalty[:, None, None] * torch.eye(inputs, dtype=torch.float64, device=penalty.device)
        # Solved for the change, so that a prior that fits already stays as it is.
        weight = start + torch.linalg.solve(covariance + eye, mixed - covariance @ start)
        bias = mean_y - (mean_x[:, None] @ weight)[:, 0]
        return weight.mT.reshape(groups * outputs, inputs).float(), bias.reshape(-1).float()
