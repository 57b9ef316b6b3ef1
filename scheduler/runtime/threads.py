"""A thread for each queue, created once, pinned; each runs one job at a time.

A hand-off through two queues is the quickest of what there is; `ThreadPoolExecutor` adds a future with its lock and
condition to every call.
"""

import threading
import weakref
from collections.abc import Callable, Mapping
from queue import SimpleQueue

from scheduler.cores import pin_thread

#: Seconds after which a wait looks up: a signal that comes between a thread's last step and its sleep does not wake it.
LOOK_S = 0.5

#: What a thread is given to run; None ends it.
Job = Callable[[], object] | None


class QueueThread(threading.Thread):
    """Runs the jobs of one queue.

    Args:
        cores: Cores that it is pinned to; empty for none.
        inbox: Where its jobs come from.
    """

    def __init__(self, queue: str, cores: tuple[int, ...], inbox: SimpleQueue[Job] | None = None) -> None:
        super().__init__(name=f"nn-stretch {queue}", daemon=True)
        self.cores, self.inbox = cores, inbox or SimpleQueue()
        #: Whether another thread has its place, because it hangs.
        self.retired = False

    def run(self) -> None:
        """Serve the inbox."""
        pin_thread(self.cores)
        while not self.retired and (job := self.inbox.get()) is not None:
            job()
            job = None  # what it holds must not outlive it in this frame


class QueueThreads:
    """A thread for each queue; whoever uses them guards them with a lock."""

    def __init__(self) -> None:
        self._threads: dict[str, QueueThread] = {}
        # what was never closed must not leave its threads behind
        self._finalizer = weakref.finalize(self, _dismiss, self._threads)

    def open(self, queue: str, cores: tuple[int, ...]) -> None:
        """Have a thread for a queue."""
        if queue not in self._threads:
            self._threads[queue] = QueueThread(queue, cores)
            self._threads[queue].start()
            if not self._finalizer.alive:
                self._threads[queue].inbox.put(None)

    def inbox(self, queue: str) -> SimpleQueue[Job]:
        """Takes jobs for the thread of a queue, which runs them in their order."""
        return self._threads[queue].inbox

    def renew(self, queue: str) -> None:
        """Have another thread for a queue whose thread hangs."""
        hung = self._threads[queue]
        hung.retired = True  # should it ever come back
        self._threads[queue] = QueueThread(queue, hung.cores, hung.inbox)
        self._threads[queue].start()

    def calling(self, queue: str | None = None) -> bool:
        """Whether the caller is the thread of a queue, or of any."""
        threads = self._threads.values() if queue is None else [self._threads.get(queue)]
        return threading.current_thread() in threads

    def close(self, go_on: Callable[[], bool] = lambda: True) -> bool:
        """Have the threads end once they have done what they were given, and wait for them; whether none is left.

        Args:
            go_on: Whether to wait longer for one that has not ended within a moment.
        """
        self._finalizer()
        for thread in list(self._threads.values()):
            if thread is not threading.current_thread():
                thread.join(LOOK_S)
                while thread.is_alive() and go_on():
                    thread.join(LOOK_S)
        return not any(thread.is_alive() for thread in self._threads.values())


def _dismiss(threads: Mapping[str, QueueThread]) -> None:
    for thread in threads.values():
        thread.inbox.put(None)
