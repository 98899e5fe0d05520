"""What a query has done, read from outside it: Spark's checkpoint and the script's transcript."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path


def rows_done(checkpoint: Path) -> int:
    """End offset of the newest batch that Spark has committed; 0 before the first."""
    for batch_id in sorted(_batches(checkpoint / "commits"), reverse=True):
        offset = _end_offset(checkpoint / "offsets" / str(batch_id))
        if offset is not None:
            return offset
    return 0


def _batches(folder: Path) -> list[int]:
    try:
        return [int(path.name) for path in folder.iterdir() if path.name.isdigit()]
    except FileNotFoundError:
        return []


def _end_offset(path: Path) -> int | None:
    # Version, metadata, then one line for each source: our JSON.
    try:
        return int(json.loads(path.read_text().splitlines()[2])["offset"])
    except (OSError, IndexError, ValueError, KeyError):
        return None


@dataclass(frozen=True)
class Replays:
    """Batches that Spark handed over again, and what became of these calls."""

    again: int
    #: Ended well: what had been applied was found in the ledger, and only the rest written.
    accepted: int
    #: Ended in an error of ours, by its name: fenced runs above all.
    refused: dict[str, int]

    @staticmethod
    def read(transcript: Path) -> Replays:
        begun: Counter[int] = Counter()
        again = accepted = 0
        refused: Counter[str] = Counter()
        try:
            lines = transcript.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            lines = []
        for line in lines:
            entry = json.loads(line)
            batch_id, event = entry["batch_id"], entry["event"]
            begun[batch_id] += event == "begun"
            again += event == "begun" and begun[batch_id] > 1
            accepted += event == "done" and begun[batch_id] > 1
            if event == "failed" and entry["error"] in REFUSALS:
                refused[entry["error"]] += 1
        return Replays(again, accepted, dict(refused))


#: Errors by which a writer refuses a batch, rather than failing to reach its server.
REFUSALS = {
    "FencedError",
    "ReplayMismatchError",
    "SinkBehindError",
    "CheckpointMismatchError",
    "HalfAppliedError",
}
