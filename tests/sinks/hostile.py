"""Texts that would break a careless encoder of SQL, RESP, Lua or format strings."""

from __future__ import annotations

#: Each may be a value, a key, a member, and as far as the server has such names a name.
HOSTILE = (
    "'; DROP TABLE bystander; -- ",
    "' OR '1'='1",
    '" OR ""="',
    "`; DROP TABLE bystander; `",
    "\\",
    "\\'; --",
    "'\\",
    "\\0\\n\\%",
    "''",
    "``",
    "a/* */b#c--d",
    "NULL",
    "0x41",
    "_binary'x'",
    "%s",
    "%(name)s %d %",
    "{0} {name} {}",
    "${HOME} $(id) ?:x",
    "\r\n$3\r\nfoo\r\n",
    "*1\r\n$8\r\nFLUSHALL\r\n",
    "]] redis.call('FLUSHALL') --[[",
    "\" .. redis.call('FLUSHALL') .. \"",
    "a\x00b",
    "\x00\x1a\b",
    "é \u202e\u2028 😀",
    " blanks\tat\nboth ends ",
    "|half",
    "1|2:0:1|complete",
    "../../etc/passwd",
)

#: Fewer, for names whose tables have to be made.
NAMES = tuple(HOSTILE[place] for place in (0, 2, 3, 5, 10, 14, 16, 18, 22, 24))


def rotated(by: int) -> list[str]:
    """The same texts beginning elsewhere, so that a row has different ones."""
    return [*HOSTILE[by:], *HOSTILE[:by]]
