"""Every interleaving of the ledger's protocol, run by the product's own decisions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_eoc.sinks.entries import AlreadyApplied, Applied, Completed, Fingerprint
from spark_eoc.sinks.ledger import (
    Close,
    decide_close,
    decide_open,
    decide_publish,
    decide_unit,
)
from spark_eoc.testing.model import Rules, Scope, explore

ONE = (((0,), (1,)),)
THREE = (((0,), (1,), (2,)),)
OTHER = (((0, 1), (2,)), ((2, 1), (0,)))
FINER = (((0, 1), (2,)), ((0,), (1,), (2,)))

SCOPES = {
    "three runs, crashes, lost answers": Scope(splits=ONE, runs=3, crashes=1, lost_answers=1),
    "three batches of three units": Scope(batches=3, splits=THREE, crashes=1, lost_answers=1),
    "another partitioning in another run": Scope(splits=OTHER, runs=3, crashes=0, lost_answers=0),
    "a call repeated with finer partitions": Scope(
        splits=FINER, runs=2, repeated_calls=1, lost_answers=0
    ),
    "whole batches, crashes, lost answers": Scope(splits=ONE, whole=frozenset({0})),
    "whole batches, a call repeated": Scope(
        splits=OTHER, whole=frozenset({0, 1}), crashes=0, repeated_calls=1, lost_answers=0
    ),
    "some runs whole, some by partitions": Scope(
        splits=FINER, whole=frozenset({1}), runs=3, crashes=0, lost_answers=0
    ),
}
DEEPER = {
    "crashes and another partitioning": Scope(splits=OTHER, runs=3, crashes=1),
    "repeated calls and lost answers": Scope(splits=FINER, runs=2, repeated_calls=1),
    "whole batches, three runs": Scope(splits=ONE, whole=frozenset({0}), runs=3),
    "whole batches, all faults": Scope(splits=OTHER, whole=frozenset({0, 1}), repeated_calls=1),
    "some runs whole, crashes": Scope(splits=FINER, whole=frozenset({1}), runs=3, lost_answers=0),
}


@pytest.mark.parametrize("scope", SCOPES.values(), ids=SCOPES.keys())
def test_no_interleaving_loses_or_doubles_a_row(scope, record_property):
    """Whatever is killed, stopped, answered late or split otherwise: once, or refused."""
    found = explore(scope)
    print(f"{found.states} states, {found.refused} endings refused")
    record_property("states", found.states)
    assert found.clean, "\n".join(found.example)
    assert found.states > 10_000


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("scope", DEEPER.values(), ids=DEEPER.keys())
def test_no_deeper_interleaving_loses_or_doubles_a_row(scope):
    """The same promise, with more faults in one history."""
    found = explore(scope)
    print(f"{found.states} states, {found.refused} endings refused")
    assert found.clean, "\n".join(found.example)


def _without_token(control, entry, unit):
    own = None if control is None else replace(control, token=unit.token)
    return decide_unit(own, entry, unit)


def _without_control(control, entry, unit):
    own = None if control is None else replace(control, token=unit.token, open_batch=unit.batch_id)
    return decide_unit(own, entry, unit)


def _without_fingerprint(control, entry, unit):
    if entry is not None and entry.batch_id == unit.batch_id:
        return AlreadyApplied()
    return decide_unit(control, entry, unit)


def _close_unseen(view, stored, reported, call, partitions):
    control = view.control
    if control.token != call.token:
        return decide_close(view, stored, reported, call, partitions)
    total = Fingerprint.sum(list(reported.values()))
    return Close(
        replace(control, open_batch=None, last_complete=call.batch_id),
        Completed(call.batch_id, call.offsets_digest, partitions, total, call.run_id),
        prune_below=0,
    )


def _open_by_anyone(view, call):
    return decide_open(view, replace(call, age_us=0, first=True))


def _publish_by_anyone(view, staged, call, partitions):
    control = replace(view.control, token=call.token, last_complete=call.batch_id - 1)
    return decide_publish(replace(view, control=control), staged, call, partitions)


def _always_applied(control, entry, unit):
    return Applied()


BROKEN = {
    "no token": (Rules(unit=_without_token), FINER, {"twice", "stuck"}),
    "no control entry": (Rules(unit=_without_control), FINER, {"twice"}),
    "no unit entry": (Rules(unit=_always_applied, after_error=lambda e, u: None), ONE, {"twice"}),
    "no fingerprint": (
        Rules(
            unit=_without_fingerprint,
            after_error=lambda entry, unit: None,
            replay=lambda *_: True,
            close=_close_unseen,
        ),
        OTHER,
        {"twice", "lost"},
    ),
    "no pass over a partly applied batch": (Rules(replay=lambda *_: True), OTHER, {"twice"}),
    "the ledger in a transaction of its own": (Rules(unit_steps="rows_then_entry"), ONE, {"twice"}),
    "a plain read at the start": (Rules(unit_steps="check_then_write"), ONE, {"twice"}),
    "a plain control read at the end": (Rules(unit_steps="control_then_write"), FINER, {"twice"}),
    "one token a run": (Rules(token_per_call=False), FINER, {"twice"}),
    "a key without the partition": (Rules(unit_key=lambda partition: 0), ONE, {"stuck"}),
    "a close that compares nothing": (
        Rules(unit=_without_fingerprint, close=_close_unseen, replay=lambda *_: True),
        OTHER,
        {"twice", "lost"},
    ),
    "a late run that takes over": (Rules(open=_open_by_anyone), ONE, {"usurped"}),
}


@pytest.mark.parametrize(
    "rules",
    [Rules(publish=_publish_by_anyone), Rules(publishes_all=True)],
    ids=["no token at the publish", "publishes all that is staged"],
)
def test_a_broken_publish_is_caught(rules):
    """The two rules of batch atomicity."""
    found = explore(Scope(splits=ONE, whole=frozenset({0})), rules, stop_at_first=True)
    print(*found.example, sep="\n  ")
    assert found.twice


@pytest.mark.parametrize(("rules", "splits", "checks"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_protocol_is_caught(rules, splits, checks):
    """Each rule is there because without it some interleaving fails, and the model finds it."""
    scope = Scope(splits=splits, runs=2, crashes=1, lost_answers=1, repeated_calls=1)
    found = explore(scope, rules, stop_at_first=True)
    caught = {name for name in ("twice", "lost", "stuck", "usurped") if getattr(found, name)}
    print(f"caught as {sorted(caught)}:", *found.example, sep="\n  ")
    assert checks & caught, f"caught as {caught}, expected one of {checks}"
