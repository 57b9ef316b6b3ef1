"""The `process` delegate: `delegate.py` starts and asks a child process, `child.py` is that process."""

from scheduler.delegates.process.delegate import ProcessDelegate

__all__ = ["ProcessDelegate"]
