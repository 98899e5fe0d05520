"""What feeds a query, as processes of their own that are killed and started again.

    with ReceiverDaemon.on(buffer) as receiver:                       # spark-eoc receive
        with ProducerProcess.to(receiver.port, folder, kind="mysql") as producer:
            receiver.kill(), receiver.restart()
            producer.kill(), producer.restart()
            producer.pause()
            until(lambda: producer.flushed, 30, "all durable")
        producer.transcript()

The query has ``bufferPath`` alone and follows the buffer.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from spark_eoc.testing.disks import SmallDisk
from spark_eoc.testing.ports import accepts
from spark_eoc.testing.processes import PACKAGE_HOME
from spark_eoc.testing.sender import write_json
from spark_eoc.testing.server import Server, ServerStartError
from spark_eoc.testing.transcript import Transcript

_CLI = "import sys; from spark_eoc.cli import main; sys.exit(main())"


class _Daemon(Server):
    """A Python process that finds this very package, also where it is not installed."""

    def __init__(
        self, folder: str | os.PathLike[str] | None = None, options: Sequence[str] = ()
    ) -> None:
        super().__init__(folder, options)
        found = [PACKAGE_HOME, os.environ.get("PYTHONPATH", "")]
        self.env["PYTHONPATH"] = os.pathsep.join(filter(None, found))


class ReceiverDaemon(_Daemon):
    """``spark-eoc receive`` on 127.0.0.1, filling one buffer."""

    name = "receiver"
    _buffer: Path

    @classmethod
    def on(
        cls,
        buffer: str | os.PathLike[str],
        folder: str | os.PathLike[str] | None = None,
        options: Sequence[str] = (),
        *,
        disk_mib: int | None = None,
        env: Mapping[str, str] | None = None,
    ) -> ReceiverDaemon:
        """A receiver that takes lines; ``options`` are those of ``spark-eoc receive``.

        With ``disk_mib`` the buffer is a disk of that size, which :meth:`fill` fills up.
        """
        receiver = cls(folder, options)
        receiver._buffer = Path(buffer).absolute()
        receiver.env.update(env or {})
        try:
            if disk_mib is not None:
                receiver.disk = SmallDisk(receiver._buffer, disk_mib)
            receiver._start_on_free_port()
        except BaseException:
            receiver.close()
            raise
        return receiver

    def _command(self) -> list[str]:
        to = ("--buffer", str(self._buffer), "--listen", f"127.0.0.1:{self.port}")
        return [sys.executable, "-c", _CLI, "receive", *to]

    def _answers(self) -> bool:
        return accepts(self.port)


class ProducerProcess(_Daemon):
    """A producer with a transcript; it can be used where a feeder can.

    A line is written down before it is sent, an acknowledgement after it came. Started again it
    goes on by its numbers.
    """

    name = "producer"

    def __init__(
        self, folder: str | os.PathLike[str] | None = None, options: Sequence[str] = ()
    ) -> None:
        super().__init__(folder, options)
        self._control: dict[str, int | None] = {"pause": 0, "mark": None}
        self._pauses = self._read = self._acknowledged = 0

    @classmethod
    def to(
        cls,
        port: int,
        folder: str | os.PathLike[str] | None = None,
        *,
        producer: str = "producer",
        kind: str = "mysql",
        lines: Sequence[bytes] | None = None,
        limit: int | None = None,
        mark: int | None = None,
        per_second: float = 300.0,
        host: str = "127.0.0.1",
        env: Mapping[str, str] | None = None,
    ) -> ProducerProcess:
        """Sends to ``port``: ``lines``, or made-up ones of a kind (see
        :func:`spark_eoc.testing.sender.made_up`), ``limit`` at most, [0, ``mark``) for now."""
        process = cls(folder)
        process.env.update(env or {})
        file = process.folder / "lines"
        if lines is not None:
            file.write_bytes(b"".join(line + b"\n" for line in lines))
        plan = {
            "host": host,
            "port": port,
            "producer": producer,
            "kind": kind,
            "file": None if lines is None else str(file),
            "limit": limit,
            "per_second": per_second,
        }
        write_json(process.folder / "plan", plan)
        process._begin(producer, mark)
        return process

    def pause(self) -> None:
        """Sends no more until :meth:`go_on`; what was sent is still delivered."""
        self._pauses += 1
        self._tell(pause=self._pauses)

    def go_on(self) -> None:
        """Sends again."""
        self._tell(pause=0)

    def release(self, mark: int) -> None:
        """Lines [0, mark) may be sent from now on."""
        self._tell(mark=mark)

    @property
    def flushed(self) -> bool:
        """Whether it pauses, or has come to the end, and every line sent is durable.

        Raises ServerStartError with its log when it has ended by itself.
        """
        if self.ended:
            raise ServerStartError(f"the producer ended: {self.log}")
        try:
            state = json.loads((self.folder / "state").read_text())
        except OSError:
            return False
        return bool(
            state == "ended" or (self._control["pause"] and state == self._control["pause"])
        )

    @property
    def acknowledged(self) -> int:
        """Lines that are durable by now, as the producer was told."""
        with open(self.folder / "transcript", "rb") as file:
            file.seek(self._read)
            new = file.read()
        whole = new.rfind(b"\n") + 1
        self._read += whole
        numbers = [int(line) for line in new[:whole].split(b"\n") if line.isdigit()]
        self._acknowledged = max([self._acknowledged, *numbers])
        return self._acknowledged

    def transcript(self) -> Transcript:
        """What was announced and acknowledged so far; only while it is paused or closed."""
        return Transcript.read(self.folder / "transcript")

    def _begin(self, producer: str, mark: int | None) -> None:
        # So that there is a transcript to read from the beginning.
        (self.folder / "transcript").write_text(json.dumps({"producer": producer}) + "\n")
        self._tell(mark=mark)
        self._launch()

    def _tell(self, **changed: int | None) -> None:
        self._control.update(changed)
        write_json(self.folder / "control", self._control)

    def _command(self) -> list[str]:
        return [sys.executable, "-m", "spark_eoc.testing.sender", str(self.folder)]

    def _answers(self) -> bool:
        return self.running
