"""Takes lines from sockets, as a client or as a listener, and makes them durable in a buffer."""

from spark_eoc.receiver.counts import ReceiverStats
from spark_eoc.receiver.options import ReceiverOptions
from spark_eoc.receiver.receiver import Receiver

__all__ = ["Receiver", "ReceiverOptions", "ReceiverStats"]
