"""Byte layouts that travel by value."""

from __future__ import annotations

import struct
from typing import Any


class Layout:
    """What ``struct.Struct`` offers, but picklable, since this package travels by value.

    (``struct`` keeps the compiled form of each format that it has seen.)
    """

    def __init__(self, format_: str) -> None:
        self.format = format_
        self.size = struct.calcsize(format_)

    def pack(self, *values: Any) -> bytes:
        """As ``struct.pack`` of this format."""
        return struct.pack(self.format, *values)

    def pack_into(self, target: Any, position: int, *values: Any) -> None:
        """As ``struct.pack_into`` of this format."""
        struct.pack_into(self.format, target, position, *values)

    def unpack(self, data: Any) -> tuple[Any, ...]:
        """As ``struct.unpack`` of this format."""
        return struct.unpack(self.format, data)

    def unpack_from(self, data: Any, position: int = 0) -> tuple[Any, ...]:
        """As ``struct.unpack_from`` of this format."""
        return struct.unpack_from(self.format, data, position)
