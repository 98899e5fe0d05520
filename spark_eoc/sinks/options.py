"""The options that decide what a row does to the target, in the text that the ledger keeps.

They lie beside the split, as ``"options"``, by the names of the writer's arguments. A name that is
missing goes with every value: such rows made the batch fail, so none of them was written, or the
ledger is older than the option.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

_NAME = "options"
#: Of a value that is longer as JSON its beginning and a digest are kept.
_LONGEST = 300


def kept_options(options: Mapping[str, object]) -> dict[str, Any]:
    """The field to keep beside the split."""
    return {_NAME: {name: _kept(value) for name, value in options.items()}}


def _kept(value: object) -> Any:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    if len(text) <= _LONGEST:
        return json.loads(text)
    digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
    return f"{text[: _LONGEST // 2]}… (sha256 {digest})"


def changed_options(begun: str, now: str) -> list[str]:
    """What differs between two kept texts, each as ``<name> was <value>, now <value>``."""
    before, after = _options(begun), _options(now)
    return [
        f"{name} was {_shown(before[name])}, now {_shown(after[name])}"
        for name in sorted(before.keys() & after.keys())
        if before[name] != after[name]
    ]


def completed_options(begun: str, now: str) -> str:
    """The text of the run that began a batch, with what only the newer run knows of its rows."""
    options = {**_options(now), **_options(begun)}
    return json.dumps({**_fields(begun), _NAME: options}, sort_keys=True) if options else begun


def split_alone(text: str) -> str:
    """A kept text without the options, for messages about the split."""
    fields = {name: value for name, value in _fields(text).items() if name != _NAME}
    return json.dumps(fields, sort_keys=True) if fields else text


def _shown(value: object) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def _options(text: str) -> dict[str, Any]:
    found = _fields(text).get(_NAME)
    return found if isinstance(found, dict) else {}


def _fields(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
