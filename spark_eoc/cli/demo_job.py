"""What the demo tells the scripts of its queries."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

#: The targets, in a database and a Redis of the demo's own.
TABLE = "flights"
KEY = "carrier:{carrier}"


@dataclass(frozen=True)
class Job:
    """What the parent tells the script."""

    sink: str
    sink_url: str
    listen: str
    folder: str
    rows_per_batch: int
    ledger: bool

    @property
    def checkpoint(self) -> Path:
        """Spark's own checkpointLocation."""
        return Path(self.folder) / "checkpoint"

    @property
    def transcript(self) -> Path:
        """One JSON object a line, for each batch that the writer is given."""
        return Path(self.folder) / "transcript"

    def save(self) -> Path:
        """Writes the file that :meth:`load` reads, and returns its path."""
        path = Path(self.folder) / "job.json"
        path.write_text(json.dumps(asdict(self)))
        return path

    @staticmethod
    def load(path: str) -> Job:
        return Job(**json.loads(Path(path).read_text()))
