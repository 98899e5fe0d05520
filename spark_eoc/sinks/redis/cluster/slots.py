"""Hash slots: of keys, a whole column at a time, and hash tags that lie in a given slot."""

from __future__ import annotations

from binascii import crc_hqx

import pyarrow as pa
import pyarrow.compute as pc

SLOTS = 16384


def slot_of(key: bytes) -> int:
    """The slot of one key: CRC16 (XMODEM) of the key, or of its first non-empty ``{tag}``."""
    start = key.find(b"{")
    if start >= 0:
        end = key.find(b"}", start + 1)
        if end > start + 1:
            key = key[start + 1 : end]
    return crc_hqx(key, 0) % SLOTS


def slots_of(keys: pa.Array) -> pa.Array:
    """The slot of each of these binary keys, as int16; NULL where the key is."""
    distinct = keys.dictionary_encode()
    names = distinct.dictionary
    if pc.any(pc.match_substring(names, b"{")).as_py():
        slots = [slot_of(name) for name in names.to_pylist()]
    else:
        slots = [crc_hqx(name, 0) % SLOTS for name in names.to_pylist()]
    return pa.array(slots, pa.int16()).take(distinct.indices)


def tag_of(slot: int) -> str:
    """Four characters of ``@`` to ``O`` that lie in ``slot``; the same ones always."""
    return _tag(_HIGH[slot >> 7] ^ _LOW[slot & 127])


def _tag(bits: int) -> str:
    return _PAIRS[bits & 255] + _PAIRS[bits >> 8]


def _basis() -> list[tuple[int, int, int]]:
    """CRCs are linear, so the slots of 14 tags tell which tag lies in any slot."""
    found: dict[int, tuple[int, int]] = {}
    for bit in range(16):
        mask = 1 << bit
        value = slot_of(_tag(mask).encode()) ^ _EMPTY
        while value and (pivot := value.bit_length() - 1) in found:
            value ^= found[pivot][0]
            mask ^= found[pivot][1]
        if value:
            found[value.bit_length() - 1] = (value, mask)
    return [(pivot, *found[pivot]) for pivot in sorted(found, reverse=True)]


def _solve(basis: list[tuple[int, int, int]], wanted: int) -> int:
    bits = 0
    for pivot, value, mask in basis:
        if wanted >> pivot & 1:
            wanted ^= value
            bits ^= mask
    return bits


_PAIRS = [chr(0x40 | byte & 15) + chr(0x40 | byte >> 4) for byte in range(256)]
_EMPTY = slot_of(_tag(0).encode())
_BASIS = _basis()
_HIGH = [_solve(_BASIS, high << 7 ^ _EMPTY) for high in range(128)]
_LOW = [_solve(_BASIS, low) for low in range(128)]
