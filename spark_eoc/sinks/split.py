"""How a batch is split into partitions, and the text that the ledger keeps of a batch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_eoc.sinks.options import kept_options


@dataclass(frozen=True)
class Split:
    """``source``: as the frame is. ``hash``: by content, into ``num_partitions``, by the columns
    ``partition_by`` or all."""

    partitioning: str = "source"
    num_partitions: int | None = None
    partition_by: tuple[str, ...] = ()

    def unites(self, columns: Sequence[str]) -> bool:
        """Whether all rows that are equal in ``columns`` are in one partition."""
        if not columns:
            return True
        return self.partitioning == "hash" and 0 < len(set(self.partition_by)) == len(
            set(self.partition_by) & set(columns)
        )

    def text(self, settings: Mapping[str, str], options: Mapping[str, object]) -> str:
        """What the control entry keeps: this, the settings that split a frame, and the options
        that decide what a row does."""
        told: dict[str, object] = {"partitioning": self.partitioning, **settings}
        if self.partitioning == "hash":
            told["num_partitions"] = self.num_partitions
            told["partition_by"] = list(self.partition_by)
        told |= kept_options(options)
        return json.dumps(told, sort_keys=True)

    @classmethod
    def of(cls, text: str) -> Split:
        """From what the control entry keeps."""
        told = json.loads(text)
        number = told.get("num_partitions")
        return cls(
            told.get("partitioning", "source"),
            None if number is None else int(number),
            tuple(told.get("partition_by") or ()),
        )
