"""Tables of accuracies that were trained for: ResNet-56 on CIFAR-10, three seeds."""

from experiments.paper.chart import Line, Point, found, point_of
from experiments.paper.picture import Found, Need

INTERVAL = "95 % interval ±"


def trained(table: str) -> Need:
    """A table of the record of scaling, as one of the needs of a figure.

    Args:
        table: Its name.
    """
    command = "python -m experiments.cifar_accuracy.run queue sequential:0+1+2:40 third:0+1+2:40 … && python -m experiments.cifar_accuracy.scaling OUT"
    return Need("experiments/cifar_accuracy/results/h200_scaling.json", table, command)


def accuracies(current: Found, beside: dict[str, Point] | None = None) -> tuple[Line, ...]:
    """Every row with its interval, the cost in its name.

    Args:
        current: The table.
        beside: Published points, by row.
    """
    return tuple(
        Line(
            f"{row['variant']} (MACs\u00a0{float(row['MACs ratio'] or 0):.2f})",
            found(
                point_of(current.record, current.table, row, "top-1 %", "", (INTERVAL, INTERVAL)), (beside or {}).get(str(row["variant"]))
            ),
        )
        for row in current.rows
    )
