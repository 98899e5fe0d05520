"""What is written where: the part of a Redis writer that drivers and tasks share."""

from __future__ import annotations

from dataclasses import dataclass, field

from spark_eoc.errors import ConfigError
from spark_eoc.sinks.redis.address import RedisAddress
from spark_eoc.sinks.redis.commands import Command
from spark_eoc.sinks.redis.replicas import Replicas


@dataclass(frozen=True)
class Target:
    """``ledger`` is the prefix of the ledger's keys, ``chunk_rows`` the operations in one script,
    ``budget_s`` how long what may pass is tried again, ``replicas`` those that must have a write.
    With ``dead_letter_limit`` refused rows go to the stream ``dead_letter_key``.

    Raises ConfigError for what can't work; nothing is connected.
    """

    address: RedisAddress
    command: Command
    ledger: str = "spark_eoc"
    chunk_rows: int = 5000
    budget_s: float = 300.0
    replicas: Replicas = field(default_factory=Replicas)
    dead_letter_key: str | None = None
    dead_letter_limit: int | None = None

    @property
    def dead_letters(self) -> str:
        """The stream of dead letters."""
        return self.dead_letter_key or f"{self.ledger}:dead_letters"

    def __post_init__(self) -> None:
        self.replicas.check_timeout(self.address.socket_timeout_s)
        if not self.ledger or not self.ledger.isprintable() or "{" in self.ledger:
            raise ConfigError(
                f"ledger={self.ledger!r} can't be the prefix of the ledger's keys",
                next_step='use plain text, such as ledger="spark_eoc"',
            )
        if self.command.key.prefix.startswith(f"{self.ledger}:"):
            raise ConfigError(
                f"key={self.command.key.text!r} lies under the ledger's prefix {self.ledger!r}",
                next_step="choose another key, or another ledger=",
            )
        if type(self.chunk_rows) is not int or self.chunk_rows < 1:
            raise ConfigError(
                f"chunk_rows={self.chunk_rows!r} is not a number from 1 on",
                next_step="leave it out for 5,000 rows in one script",
            )
