"""The ledger's decisions, without a database: a table of states and calls."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_eoc.errors import (
    CheckpointMismatchError,
    ConfigError,
    FencedError,
    ReplayMismatchError,
    SinkBehindError,
)
from spark_eoc.sinks.entries import (
    AlreadyApplied,
    Applied,
    Call,
    Completed,
    Control,
    Fingerprint,
    LedgerView,
    Refused,
    Unit,
    UnitEntry,
    ledger_key,
)
from spark_eoc.sinks.ledger import (
    Compare,
    Open,
    check_totals,
    decide_after_error,
    decide_close,
    decide_open,
    decide_replay,
    decide_unit,
)
from spark_eoc.sinks.split import Split

NOW = 1_000_000_000
F1, F2, F3 = (Fingerprint(n, 7**n) for n in (10, 20, 30))
CONTROL = Control("q", "run-a", 4, "token-a", None, 5, "{}", NOW - 500)
CALL = Call("w", "q", "run-a", 6, "token-b", first=False, offsets_digest="d6")
DONE = Completed(5, "d5", 2, F1, "run-0")
UNIT = Unit("w", 0, 6, 5, "token-b", F1)


def view(control: Control | None = CONTROL, *history: Completed, units: int = 0) -> LedgerView:
    return LedgerView(control, {done.batch_id: done for done in history}, units, NOW)


def opened(decision: Open | Compare) -> Control:
    assert isinstance(decision, Open)
    return decision.control


def test_fingerprints_add_modulo_two_to_the_64_and_survive_text() -> None:
    """A batch's fingerprint is the sum of its units', whatever their order."""
    big = Fingerprint(1, 2**64 - 1)
    assert big + Fingerprint(1, 2) == Fingerprint(2, 1)
    assert Fingerprint.parse(str(big)) == big
    with pytest.raises(ValueError, match="versions"):
        _ = big + Fingerprint(0, 0, version=2)


def test_keys_that_a_collation_takes_for_one_do_not_meet() -> None:
    """The ledger's keys are hashes: case and trailing spaces count."""
    names = ["shop.t", "shop.T", "shop.t ", "shop.ţ"]
    assert len({ledger_key(name) for name in names}) == len(names)


def test_each_call_takes_a_new_epoch_and_its_own_token() -> None:
    """A straggler of the same run must not pass, so a run's second call changes the token too."""
    control = opened(decide_open(view(), CALL))
    assert (control.epoch, control.token, control.open_batch) == (5, "token-b", 6)
    again = opened(decide_open(view(control), replace(CALL, token="token-c")))
    assert (again.epoch, again.token, again.open_batch) == (6, "token-c", 6)


def test_a_lost_answer_to_open_is_recognised() -> None:
    """The same call, again: nothing changes."""
    control = opened(decide_open(view(), CALL))
    assert decide_open(view(control), CALL) == Open(control)


def test_the_first_batch_of_all_creates_the_ledger() -> None:
    """Without a ledger only batch 0 begins one."""
    control = opened(decide_open(view(None), replace(CALL, batch_id=0)))
    assert (control.last_complete, control.epoch, control.opened_us) == (-1, 1, NOW)


@pytest.mark.parametrize("control", [None, CONTROL])
def test_a_sink_older_than_the_checkpoint_is_refused(control: Control | None) -> None:
    """A restored dump, or a ledger that is gone: going on would lose batches."""
    with pytest.raises(SinkBehindError):
        decide_open(view(control), replace(CALL, batch_id=8))


def test_another_run_takes_over_in_its_first_call_only() -> None:
    """A late zombie's next call must not fence the healthy run."""
    assert opened(decide_open(view(), replace(CALL, run_id="run-b", first=True))).run_id == "run-b"
    with pytest.raises(FencedError, match="run-a"):
        decide_open(view(), replace(CALL, run_id="run-b", first=False))


@pytest.mark.parametrize(("age_us", "fenced"), [(400, False), (500, False), (501, True)])
def test_a_run_older_than_the_owners_open_is_fenced(age_us: int, fenced: bool) -> None:
    """Stopped before its first open, and continued while another run works: it must not fence."""
    call = replace(CALL, run_id="run-b", first=True, age_us=age_us)
    if fenced:
        with pytest.raises(FencedError):
            decide_open(view(), call)
    else:
        assert isinstance(decide_open(view(), call), Open)


def test_a_server_clock_set_back_does_not_fence_for_ever() -> None:
    """An open in the future says nothing."""
    control = replace(CONTROL, opened_us=NOW + 10**12)
    call = replace(CALL, run_id="run-b", first=True, age_us=10**9)
    assert isinstance(decide_open(view(control), call), Open)


def test_the_split_of_a_partly_applied_batch_is_kept() -> None:
    """The message of a mismatch names the settings of the run that began the batch."""
    control = replace(CONTROL, open_batch=6, split='{"n": "4"}')
    call = replace(CALL, split='{"n": "7"}')
    assert opened(decide_open(view(control, units=1), call)).split == '{"n": "4"}'
    assert opened(decide_open(view(control, units=0), call)).split == '{"n": "7"}'


def test_a_complete_batch_is_compared_by_its_digest() -> None:
    """Equal: computed and not written. Other: an older checkpoint went another way."""
    call = replace(CALL, batch_id=5, offsets_digest="d5")
    assert decide_open(view(CONTROL, DONE), call) == Compare(DONE)
    with pytest.raises(CheckpointMismatchError, match="other offsets"):
        decide_open(view(CONTROL, DONE), replace(call, offsets_digest="dx"))


def test_without_a_digest_only_the_newest_batch_is_compared_by_totals() -> None:
    """Where Spark's log can't be read, equal totals are the only evidence."""
    call = replace(CALL, batch_id=5, offsets_digest=None)
    assert decide_open(view(CONTROL, DONE), call) == Compare(DONE, by_totals=True)
    whole = replace(DONE, atomicity="batch")
    assert decide_open(view(CONTROL, whole), call) == Compare(whole)
    with pytest.raises(CheckpointMismatchError, match="not the newest"):
        decide_open(view(replace(CONTROL, last_complete=6), DONE), call)
    with pytest.raises(ReplayMismatchError):
        check_totals(DONE, F2)
    check_totals(DONE, F1)


def test_a_batch_older_than_the_history_is_refused() -> None:
    """Nothing is known of it any more."""
    with pytest.raises(CheckpointMismatchError, match="older than the ledger's history"):
        decide_open(view(CONTROL), replace(CALL, batch_id=2))


def test_a_second_call_for_a_batch_in_one_run_is_refused() -> None:
    """Two writes of one function under one writer_id: the second would silently be dropped."""
    done = replace(DONE, run_id="run-a")
    with pytest.raises(ConfigError, match="already written by this run"):
        decide_open(view(CONTROL, done), replace(CALL, batch_id=5))


def test_another_query_is_refused_with_the_remedy() -> None:
    """A wiped checkpoint begins at 0 again: its batches would silently be dropped."""
    call = replace(CALL, query_id="other", batch_id=0, first=True)
    with pytest.raises(CheckpointMismatchError, match="startingOffsets"):
        decide_open(view(), call)


def test_adoption_begins_a_new_ledger_under_the_next_epoch() -> None:
    """Only by a run's first call with batch 0."""
    call = replace(CALL, query_id="other", batch_id=0, first=True, adopt=True)
    decision = decide_open(view(), call)
    assert isinstance(decision, Open)
    assert decision.reset
    assert (decision.control.epoch, decision.control.last_complete) == (5, -1)
    for wrong in (replace(call, batch_id=6), replace(call, first=False)):
        with pytest.raises(CheckpointMismatchError):
            decide_open(view(), wrong)


def test_adoption_of_a_half_applied_batch_is_refused() -> None:
    """Its other half would be lost."""
    call = replace(CALL, query_id="other", batch_id=0, first=True, adopt=True)
    with pytest.raises(CheckpointMismatchError, match="2 partitions"):
        decide_open(view(replace(CONTROL, open_batch=6), units=2), call)


def test_adoption_without_a_ledger_takes_the_checkpoints_batch() -> None:
    """A lost ledger can be begun again, on the user's word."""
    call = replace(CALL, first=True, adopt=True)
    assert opened(decide_open(view(None), call)).last_complete == 5


OWNED = replace(CONTROL, token="token-b", open_batch=6, epoch=5)


@pytest.mark.parametrize(
    ("control", "entry", "expected"),
    [
        (OWNED, None, Applied()),
        (OWNED, UnitEntry(0, 5, F3), Applied()),
        (OWNED, UnitEntry(0, 6, F1), AlreadyApplied()),
        (OWNED, UnitEntry(0, 6, F2), "ReplayMismatchError"),
        (OWNED, UnitEntry(0, 7, F1), "FencedError"),
        (replace(OWNED, token="token-c"), None, "FencedError"),
        (replace(OWNED, open_batch=7), None, "FencedError"),
        (None, None, "FencedError"),
    ],
)
def test_compare_and_set_of_a_unit(
    control: Control | None, entry: UnitEntry | None, expected: object
) -> None:
    """Token equal, batch open, and nothing there, or less."""
    outcome = decide_unit(control, entry, UNIT)
    assert (outcome.error if isinstance(outcome, Refused) else outcome) == expected


def test_after_an_error_the_unit_entry_speaks_first() -> None:
    """Else a retry after a lost COMMIT takes its own rows for somebody else's."""
    assert decide_after_error(UnitEntry(0, 6, F1), UNIT) == AlreadyApplied()
    assert decide_after_error(UnitEntry(0, 5, F1), UNIT) is None
    assert decide_after_error(None, UNIT) is None


REPLAYS = [
    # stored, computed, write the rest?
    ([(0, F1)], {0: F1, 1: F2}, True),
    ([(1, F2)], {0: F1, 1: F2}, True),
    ([(0, F1), (1, F2)], {0: F1 + F2}, False),  # all there, split otherwise
    ([(0, F1)], {0: F2, 1: F1}, None),
    ([(0, F1)], {0: F1 + F2}, None),
    ([(0, F1), (3, F2)], {0: F1, 1: F2, 2: F3}, None),
]


@pytest.mark.parametrize(("stored", "computed", "expected"), REPLAYS)
def test_replay_of_a_partly_applied_batch(
    stored: list[tuple[int, Fingerprint]],
    computed: dict[int, Fingerprint],
    expected: bool | None,
) -> None:
    """What is applied must be part of what is computed, or the whole of it; else nothing is
    written, and the error names the settings."""
    entries = [UnitEntry(p, 6, f) for p, f in stored]
    if expected is None:
        with pytest.raises(ReplayMismatchError, match="they were SPLIT, now they are NOW"):
            decide_replay(entries, computed, {}, "SPLIT", "NOW")
    else:
        assert decide_replay(entries, computed, {}, "SPLIT", "NOW") is expected


def test_replay_of_an_incomplete_unit_compares_its_first_rows() -> None:
    """A sink that applies chunks goes on where it stopped."""
    entry = UnitEntry(0, 6, F1, complete=False)
    assert decide_replay([entry], {0: F1 + F2}, {0: F1}, "", "")
    with pytest.raises(ReplayMismatchError):
        decide_replay([entry], {0: F1 + F2}, {0: F2}, "", "")


def test_close_completes_the_batch_and_forgets_old_history() -> None:
    """Stored equals reported, the token is ours."""
    call = replace(CALL, batch_id=200)
    control = replace(OWNED, open_batch=200, last_complete=199)
    close = decide_close(view(control), [UnitEntry(0, 200, F1)], {0: F1}, call, 2)
    assert close is not None
    assert (close.control.open_batch, close.control.last_complete) == (None, 200)
    assert close.completed == Completed(200, "d6", 2, F1, "run-a")
    assert close.prune_below == 101


@pytest.mark.parametrize(
    ("stored", "reported"),
    [
        ([], {0: F1}),  # an entry that is gone
        ([UnitEntry(0, 6, F1), UnitEntry(5, 6, F2)], {0: F1}),  # a straggler's unit
        ([UnitEntry(0, 6, F2)], {0: F1}),
        ([UnitEntry(0, 6, F1, complete=False)], {0: F1}),
    ],
)
def test_close_refuses_units_that_the_tasks_did_not_report(
    stored: list[UnitEntry], reported: dict[int, Fingerprint]
) -> None:
    """Whatever is stored beside what was reported is lost or doubled rows."""
    with pytest.raises(ReplayMismatchError):
        decide_close(view(OWNED), stored, reported, CALL, 1)


def test_close_by_a_fenced_call_is_refused_and_a_lost_answer_is_recognised() -> None:
    """Only the owner completes a batch, and only once."""
    with pytest.raises(FencedError):
        decide_close(view(replace(OWNED, token="token-c")), [], {}, CALL, 0)
    done = replace(OWNED, open_batch=None, last_complete=6)
    assert decide_close(view(done), [], {}, CALL, 0) is None


def test_an_empty_batch_is_closed_too() -> None:
    """A batch without rows leaves a history entry, so the next one can follow."""
    close = decide_close(view(OWNED), [], {}, CALL, 0)
    assert close is not None
    assert close.completed.fingerprint == Fingerprint()


def told(partitioning: str = "source", **options: object) -> str:
    return Split(partitioning, 2 if partitioning == "hash" else None).text({}, options)


#: What a batch was begun with, what the next run has, what changed (None: it may go on).
BEGUN: list[tuple[str, str, str | None]] = [
    (told(merge={"n": "add"}), told(merge={"n": "add"}), None),
    (told(m={"n": "add"}), told(m={"n": "max"}), 'm was {"n": "add"}, now {"n": "max"}'),
    (told(ttl=None, a=1), told(ttl=60, a=2), "a was 1, now 2; ttl was null, now 60"),
    (told(fields=("a", "b")), told(fields=["a", "b"]), None),
    (told(nan="null"), told(), None),
    (told(), told(nan="null"), None),
    (told("hash", a=1), told(a=1), None),
    ("{}", told(a=1), None),
    ("0", told(a=1), None),
    ("no JSON", told(a=1), None),
    (told(a="x" * 1000), told(a="x" * 1000), None),
    (told(a="x" * 1000), told(a="x" * 999 + "y"), r"a was \"\\\"xxx.*sha256"),
]


@pytest.mark.parametrize(("then", "now", "changed"), BEGUN)
def test_a_partly_applied_batch_keeps_its_options(then: str, now: str, changed: str | None) -> None:
    """Refused with what changed; free while nothing of the batch is applied. An option that only
    one of the runs tells decided about no row of the other, or its ledger is older."""
    control, call = replace(CONTROL, open_batch=6, split=then), replace(CALL, split=now)
    assert opened(decide_open(view(control), call)).split == now
    assert opened(decide_open(view(replace(control, open_batch=None)), call)).split == now
    if changed is None:
        assert isinstance(decide_open(view(control, units=2), call), Open)
        return
    with pytest.raises(ReplayMismatchError, match=changed) as refused:
        decide_open(view(control, units=2), call)
    assert "2 units" in str(refused.value)
    assert "put the options back" in str(refused.value)
    assert len(str(refused.value)) < 1500


def test_an_option_that_only_a_later_run_told_is_kept_with_the_batch() -> None:
    """Begun with NaN as an error, gone on with as NULL: then a third way would be a second one."""
    control = replace(CONTROL, open_batch=6, split=told(mode="append"))
    for token, nan in (("token-c", {"nan": "null"}), ("token-d", {})):
        call = replace(CALL, token=token, split=told(mode="append", **nan))
        control = opened(decide_open(view(control, units=1), call))
    call = replace(CALL, token="token-e", split=told(mode="append", nan="dead_letter"))
    with pytest.raises(ReplayMismatchError, match='nan was "null", now "dead_letter"'):
        decide_open(view(control, units=1), call)


def test_a_mismatch_of_the_split_does_not_repeat_the_options() -> None:
    """They are the same by then, and long."""
    stored = [UnitEntry(0, 6, F1)]
    with pytest.raises(ReplayMismatchError) as refused:
        decide_replay(stored, {0: F2}, {}, told(secretive="option"), told("hash"))
    assert '{"partitioning": "source"}, now they are {' in str(refused.value)
    assert "secretive" not in str(refused.value)
