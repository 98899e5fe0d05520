"""A receiver in a process of its own, to be killed: ``child.py BUFFER PORT SEGMENT_BYTES``."""

from __future__ import annotations

import sys
import time

from spark_eoc.buffer import BufferOptions, LogWriter
from spark_eoc.receiver import Receiver, ReceiverOptions


def main() -> int:
    path, port, segment_bytes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    writer = LogWriter.open(path, BufferOptions(segment_bytes=segment_bytes))
    receiver = Receiver(writer, ReceiverOptions(listen=("127.0.0.1", port))).start()
    while receiver.running:
        time.sleep(0.05)
    print(receiver.error, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
