"""`stretch delegates`: list the delegates that can run subgraphs on this machine."""

from typing import TYPE_CHECKING

import msgspec

from stretch.cli.output import Output, verb

if TYPE_CHECKING:
    from rich.console import Console

    from scheduler.delegates import Delegate


class ListedDelegate(msgspec.Struct, frozen=True, kw_only=True):
    """A delegate."""

    name: str
    summary: str  # One-line description.
    available: bool  # Whether it can run here.
    reason: str | None  # Reason if it cannot; None otherwise.
    asynchronous: bool  # Whether it enqueues work instead of using a thread.
    computes: bool  # Whether it computes real outputs.
    module: str  # Python module of the class.
    origin: str | None  # Package and entry point of a third-party delegate; None for built-in ones.


class DelegatesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The delegates; the fields are the keys of `stretch delegates --json`."""

    items: list[ListedDelegate]
    broken: dict[str, str]  # Third-party delegates that cannot be used, with the reason.


@verb
def delegates(out: Output) -> None:
    """List delegates, including third-party ones, and whether they can run on this machine."""
    from scheduler.delegates import delegates as registry
    from scheduler.delegates import load_plugins, origin

    broken = load_plugins()
    items = []
    for name in registry:
        delegate = registry.get(name)
        try:
            problem = delegate.unavailable()
        except Exception as error:
            if origin(name) is None:
                raise
            broken[name] = problem = f"{type(error).__name__}: {error} ({origin(name)})"
        items.append(
            ListedDelegate(
                name=name,
                summary=str(delegate.summary) or _documented(delegate),
                available=problem is None,
                reason=problem,
                asynchronous=delegate.asynchronous,
                computes=delegate.computes,
                module=delegate.__module__,
                origin=origin(name),
            )
        )
    for name, problem in sorted(broken.items()):
        out.warn(f"delegate `{name}` of another package cannot be used: {problem}")

    def human(console: "Console") -> None:
        from rich.table import Table

        table = Table(box=None, pad_edge=False)
        for title in ("delegate", "what it is", "available", "how work reaches it"):
            table.add_column(title)
        for item in items:
            how = "enqueued, no thread" if item.asynchronous else "calling thread or a dedicated thread"
            table.add_row(item.name, item.summary, "yes" if item.available else f"no: {item.reason}", how)
        console.print(table)

    out.emit(DelegatesAnswer(items=items, broken=broken), human)


def _documented(delegate: "type[Delegate]") -> str:
    """First line of a delegate's class docstring, for delegates without a summary."""
    docstring = delegate.__dict__.get("__doc__") or ""
    return (docstring.strip().splitlines() or [f"no summary, from {delegate.__module__}"])[0]
