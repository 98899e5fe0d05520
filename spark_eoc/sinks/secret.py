"""A password that shows in no repr, log or exception, nor in the text of a pickle."""

from __future__ import annotations

import secrets


class Secret:
    """Wraps a password; only :meth:`reveal` gives it out.

    It must travel to the tasks, so its pickle holds it, masked by random bytes: that hides it
    from a search of files and logs, not from who unpickles it.
    """

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The password itself, for the database's driver only."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(***)"

    def __bool__(self) -> bool:
        return bool(self._value)

    def __getstate__(self) -> dict[str, bytes]:
        plain = self._value.encode()
        mask = secrets.token_bytes(len(plain))
        return {"mask": mask, "masked": _xor(plain, mask)}

    def __setstate__(self, state: dict[str, bytes]) -> None:
        self._value = _xor(state["masked"], state["mask"]).decode()


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))
