"""A staged batch whose refused rows are put aside, published in one script with their letters.

The script names all operations that don't fit what Redis holds, and does nothing; it is sent again
without them and with the letters of their rows, until it names none.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import redis

from spark_eoc.errors import DeadLetterLimitError, ReplayMismatchError, SinkError
from spark_eoc.sinks.dead_letters import whole_over_limit
from spark_eoc.sinks.redis.given import Letter, letters_of, size_of, unpacked_letters
from spark_eoc.sinks.redis.lua_publish_aside import publish_aside_script
from spark_eoc.sinks.redis.publish import Publication
from spark_eoc.sinks.redis.server import text
from spark_eoc.sinks.redis.staged import StagedEntry, check_letters

LOGGER = logging.getLogger("spark_eoc.sinks")


class AsidePublication(Publication):
    """As :class:`Publication`, for what :class:`~.stage_aside.AsideStager` staged."""

    def send(self, client: redis.Redis, store: Sequence[str | int]) -> bool:
        """See :meth:`Publication.send`; DeadLetterLimitError, with nothing published, where more
        rows of the batch than the limit are refused."""
        entries = self._ready(client)
        letters = self._staged_letters(client, entries)
        skipped: list[int] = []
        while True:
            self._check_limit(len(letters))
            check_letters(size_of(letters), f"batch {self._batch_id}")
            answer, *facts = self._run(
                client,
                self._names(),
                [*store, *self._arguments(entries), *self._asides(letters, skipped)],
            )
            if answer == b"BAD":
                named = _named(facts)
                skipped += [part for c, found in named.items() for i in found for part in (c, i)]
                most = self._limit + 1 - len(letters)
                letters += self._letters_of(client, entries, named, most)
            elif answer == b"LETTERS":
                raise self._unfit(text(facts[0]))
            elif answer in (b"OK", b"CHANGED"):
                if answer == b"OK":
                    self._tell(letters)
                return bool(answer == b"OK")
            else:
                raise self._refusal(text(answer), facts)

    def _source(self) -> str:
        return publish_aside_script(self._target.command.name, self._target.command.on_null)

    def _names(self) -> list[str]:
        given = [self._keys.given(one.staging_id) for one in self._staged]
        return [*super()._names(), *given, self._target.dead_letters]

    def _asides(self, letters: Sequence[Letter], skipped: Sequence[int]) -> list[str | int]:
        most = self._limit + 1 - len(letters)
        words = [word for letter in letters for word in letter]
        return [self._writer_id, most, len(letters), *words, len(skipped) // 2, *skipped]

    @property
    def _limit(self) -> int:
        return self._target.dead_letter_limit or 0

    def _check_limit(self, found: int) -> None:
        if found > self._limit:
            refusal = whole_over_limit(self._batch_id, found, self._limit)
            raise DeadLetterLimitError(
                refusal.what, applied=refusal.applied, next_step=refusal.next_step
            )

    def _staged_letters(
        self, client: redis.Redis, entries: Mapping[str, StagedEntry]
    ) -> list[Letter]:
        """Those that the tasks know of."""
        self._check_limit(sum(entry.letters for entry in entries.values()))
        letters: list[Letter] = []
        for one in self._staged:
            entry, found = entries[one.staging_id], list[Letter]()
            for number in range(1, entry.pieces + 1):
                piece = client.hget(self._keys.given(one.staging_id), f"aside:{number}")
                found += [] if piece is None else unpacked_letters(text(piece))
            if len(found) != entry.letters:
                raise self._lost(one.partition)
            letters += found
        return letters

    def _letters_of(
        self,
        client: redis.Redis,
        entries: Mapping[str, StagedEntry],
        named: Mapping[int, Mapping[int, str]],
        most: int,
    ) -> list[Letter]:
        """Those of the rows that went into the named operations, by the chunk's place; of more
        than ``most`` only some."""
        places = [
            (one, number)
            for one in self._staged
            for number in range(1, entries[one.staging_id].chunks + 1)
        ]
        letters: list[Letter] = []
        for place, reasons in named.items():
            if len(letters) >= most:
                break
            one, number = places[place - 1]
            packed: Any = client.hget(self._keys.given(one.staging_id), str(number))
            found = [] if packed is None else letters_of(packed, one.partition, reasons, most)
            if not found:
                raise self._lost(one.partition)
            letters += found
        return letters

    def _lost(self, partition: int) -> ReplayMismatchError:
        return ReplayMismatchError(
            f"rows of partition {partition} of batch {self._batch_id} are refused, and what the "
            "frame gave is not there any more",
            applied="nothing of this batch",
            next_step="see whether the server lost what it had acknowledged, or someone deleted "
            "staged rows; restart the query, which stages the batch again",
        )

    def _unfit(self, problem: str) -> SinkError:
        return SinkError(
            f"the stream {self._target.dead_letters!r} can't take dead letters: {problem}",
            applied="nothing of this batch",
            next_step="remove what is at that key, or let this user write to it, then restart the "
            "query",
        )

    def _tell(self, letters: Sequence[Letter]) -> None:
        rows = {str(one.partition): one.fingerprint.rows for one in self._staged}
        for partition, count in sorted(Counter(letter[0] for letter in letters).items()):
            LOGGER.warning(
                "batch %d, partition %s: %d of %d rows were refused and put aside in stream %s",
                self._batch_id,
                partition,
                count,
                rows[partition],
                self._target.dead_letters,
            )


def _named(facts: Sequence[bytes]) -> dict[int, dict[int, str]]:
    """Chunk, operation, reason, of all that the script named."""
    named: dict[int, dict[int, str]] = {}
    for chunk, operation, reason in zip(facts[::3], facts[1::3], facts[2::3], strict=True):
        named.setdefault(int(chunk), {})[int(operation)] = text(reason)
    return named
