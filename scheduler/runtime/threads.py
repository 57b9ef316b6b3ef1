"""One thread per queue, created once and pinned.

A hand-over through two queues is the fastest; `ThreadPoolExecutor` adds a future with its lock and
condition to every call.
"""

import threading
import weakref
from collections.abc import Callable, Mapping
from queue import SimpleQueue

from scheduler.cores import pin_thread

#: Seconds after which a wait checks for signals: a signal just before a thread sleeps does not wake the thread.
POLL_S = 0.5

#: Work for a thread; None ends it.
Job = Callable[[], object] | None


class QueueThread(threading.Thread):
    """Runs the jobs of one queue.

    Args:
        cores: Cores that the thread is pinned to; empty for no pinning.
        inbox: Queue of the thread's jobs.
    """

    def __init__(self, queue: str, cores: tuple[int, ...], inbox: SimpleQueue[Job] | None = None) -> None:
        super().__init__(name=f"nn-stretch {queue}", daemon=True)
        self.cores, self.inbox = cores, inbox or SimpleQueue()
        #: Whether another thread has replaced this one because it hangs.
        self.replaced = False

    def run(self) -> None:
        """Run the jobs in the inbox until None arrives."""
        pin_thread(self.cores)
        while not self.replaced and (job := self.inbox.get()) is not None:
            job()
            job = None  # the job's tensors must not be kept alive by this frame


class QueueThreads:
    """One thread per queue; callers must hold a lock."""

    def __init__(self) -> None:
        self._threads: dict[str, QueueThread] = {}
        # threads must end even if this object was never closed
        self._finalizer = weakref.finalize(self, _stop_threads, self._threads)

    def open(self, queue: str, cores: tuple[int, ...]) -> None:
        """Start a thread for a queue, unless the queue has one."""
        if queue not in self._threads:
            self._threads[queue] = QueueThread(queue, cores)
            self._threads[queue].start()
            if not self._finalizer.alive:
                self._threads[queue].inbox.put(None)

    def inbox(self, queue: str) -> SimpleQueue[Job]:
        """Return the inbox of a queue's thread, which runs jobs in order."""
        return self._threads[queue].inbox

    def replace_thread(self, queue: str) -> None:
        """Start another thread for a queue whose thread hangs."""
        hung = self._threads[queue]
        hung.replaced = True  # ends the old thread if it ever returns
        self._threads[queue] = QueueThread(queue, hung.cores, hung.inbox)
        self._threads[queue].start()

    def is_calling_thread(self, queue: str | None = None) -> bool:
        """Return whether the caller is the thread of a queue, or of any queue for None."""
        threads = self._threads.values() if queue is None else [self._threads.get(queue)]
        return threading.current_thread() in threads

    def close(self, keep_waiting: Callable[[], bool] = lambda: True) -> bool:
        """End the threads after their current work and wait for them; return whether all have ended.

        Args:
            keep_waiting: Returns whether to keep waiting for a thread that has not ended within a moment.
        """
        self._finalizer()
        for thread in list(self._threads.values()):
            if thread is not threading.current_thread():
                thread.join(POLL_S)
                while thread.is_alive() and keep_waiting():
                    thread.join(POLL_S)
        return not any(thread.is_alive() for thread in self._threads.values())


def _stop_threads(threads: Mapping[str, QueueThread]) -> None:
    for thread in threads.values():
        thread.inbox.put(None)
