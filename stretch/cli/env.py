"""`stretch env`: what a bug report needs."""

from stretch.cli.output import Output, verb


@verb
def env(out: Output) -> None:
    """Print versions, processors and where the packages come from."""
    out.emit({"items": []}, lambda console: console.print("hello"))
