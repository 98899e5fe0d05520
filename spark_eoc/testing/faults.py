"""What a network, or whoever sets the clock, does to a query, chosen by a strike."""

from __future__ import annotations

from collections.abc import Sequence

from spark_eoc.testing.kills import Strike
from spark_eoc.testing.proxy import Proxy, Rules

#: Bytes after which a connection is cut: from within a hello to within a large statement.
_FEW, _MANY = 1, 200_000
#: How far a clock is put off, either way.
_HOURS = 48


def network_fault(strike: Strike, links: Sequence[Proxy]) -> tuple[str, Proxy, Rules]:
    """A name, the connection that is hit, and the rules for it; the same for the same strike."""
    draw = strike.draw()
    link = draw.choice(list(links))
    size = draw.randrange(_FEW, _MANY)
    name, rules = draw.choice(
        [
            (f"cut after {size} bytes to the server", Rules(cut_to_server=size)),
            (f"cut after {size} bytes to the client", Rules(cut_to_client=size)),
            (f"half closed after {size} bytes", Rules(half_close_to_server=size)),
            ("a black hole", Rules(black_hole=True)),
            ("every piece 0.3 s late", Rules(delay_s=0.3)),
            ("the answer to COMMIT swallowed", Rules(swallow_answer_to=b"COMMIT")),
            ("the answer to EVALSHA swallowed", Rules(swallow_answer_to=b"EVALSHA")),
        ]
    )
    return name, link, rules


def clock_jump(strike: Strike) -> int:
    """Seconds that the clock is ahead from then on, or behind."""
    return strike.draw().randrange(-_HOURS * 3600, _HOURS * 3600)
