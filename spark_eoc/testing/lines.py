"""A step that is cut off at its n-th line of some files: killed, dropped, or held there.

So a test can die between any two steps of code that it knows nothing of. A line that is run again
counts once, so that loops don't make a step longer.
"""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from types import FrameType
from typing import Any, BinaryIO

from pyspark import cloudpickle

_SIZE = struct.Struct("!Qi")


class DroppedError(BaseException):
    """Raised at a line by :func:`dropped_at`; no ``except Exception`` of the step sees it."""


def at_line(files: Sequence[str], line: int, act: Callable[[], None]) -> Callable[..., Any]:
    """A trace function for ``sys.settrace`` that calls ``act`` before the ``line``-th line."""
    wanted, seen = set(files), set[tuple[str, int]]()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in wanted:
            return None
        place = (frame.f_code.co_filename, frame.f_lineno)
        if event == "line" and place not in seen:
            seen.add(place)
            if len(seen) == line:
                act()
        return trace

    return trace


def dropped_at(files: Sequence[str], line: int, step: Callable[[], Any]) -> bool:
    """Runs ``step`` until its ``line``-th line, where the caller is thrown out of it.

    False if it ended before. What ``finally`` blocks do is still done: where that matters, kill.
    """

    def drop() -> None:
        raise DroppedError

    before = sys.gettrace()
    sys.settrace(at_line(files, line, drop))
    try:
        step()
    except DroppedError:
        return True
    finally:
        sys.settrace(before)
    return False


class Held:
    """``step`` in a thread that is held before its ``line``-th line until :meth:`go_on`.

    ``reached`` tells whether it is held there; False: it ended before, or didn't in ``wait``
    seconds.
    """

    def __init__(
        self, files: Sequence[str], line: int, step: Callable[[], Any], *, wait: float = 60
    ) -> None:
        self._arrived, self._go_on = threading.Event(), threading.Event()
        self._reached = False
        self._files, self._line, self._step = files, line, step
        self._result: Any = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._arrived.wait(wait)
        self.reached = self._reached

    def _run(self) -> None:
        sys.settrace(at_line(self._files, self._line, self._hold))
        try:
            self._result = self._step()
        except Exception as error:  # noqa: BLE001  given to who waits
            self._result = error
        finally:
            sys.settrace(None)
            self._arrived.set()

    def _hold(self) -> None:
        self._reached = True
        self._arrived.set()
        self._go_on.wait(60)

    def go_on(self) -> Any:
        """Lets it go on; what the step returned, or the error that it raised."""
        self._go_on.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), "the step hangs"
        return self._result


class Killer:
    """A process that makes steps in children of its own, each killed at a line.

    The children are forked from a process that has imported ``modules`` and opened nothing: no
    connection is shared with the test.
    """

    def __init__(self, modules: Sequence[str] = ()) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )

    def __enter__(self) -> Killer:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def killed_at(self, files: Sequence[str], line: int, step: Callable[[], Any]) -> bool:
        """SIGKILL before the ``line``-th line of ``step``; False if it ended before.

        ``step`` is pickled; what it does must lie outside of the process.
        """
        pickled: bytes = cloudpickle.dumps((list(files), step))  # type: ignore[no-untyped-call]
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(_SIZE.pack(len(pickled), line) + pickled)
        self._process.stdin.flush()
        answer = self._process.stdout.read(1)
        assert answer in (b"k", b"e"), f"the step failed before line {line}, see its standard error"
        return answer == b"k"


def _serve(requests: BinaryIO, answers: BinaryIO) -> None:
    while head := requests.read(_SIZE.size):
        size, line = _SIZE.unpack(head)
        pickled = requests.read(size)
        child = os.fork()
        if child == 0:
            _step(pickled, line)
        _, status = os.waitpid(child, 0)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        answers.write(b"k" if killed else b"e" if status == 0 else b"f")
        answers.flush()


def _step(pickled: bytes, line: int) -> None:
    try:
        files, step = cloudpickle.loads(pickled)
        sys.settrace(at_line(files, line, lambda: os.kill(os.getpid(), signal.SIGKILL)))
        step()
        sys.settrace(None)
    except BaseException:  # noqa: BLE001  the child must end here, whatever it was
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        with suppress(ImportError):  # it is only so that the children needn't
            import_module(name)
    _serve(sys.stdin.buffer, sys.stdout.buffer)
