"""``spark-eoc buffer`` on a buffer in an object store."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import TYPE_CHECKING

from spark_eoc.cli.buffer_view import object_table
from spark_eoc.cli.usage import UsageError, check_consumer
from spark_eoc.errors import LogError

if TYPE_CHECKING:
    from spark_eoc.buffer.objects import Objects
    from spark_eoc.buffer.objects.verify import ObjectReport


def run_in_store(args: argparse.Namespace) -> int:
    """Does the action; 1 if something is damaged. Raises UsageError for one that an object store
    has not, LogError where the store can't be reached."""
    from spark_eoc.buffer.objects import ObstoreObjects  # noqa: PLC0415  heavy

    actions = {"ls": _ls, "verify": _verify, "trim": _trim}
    if args.action not in actions:
        raise UsageError(
            f"buffer {args.action} works on a folder: in an object store a chunk is whole or not "
            "there, and one that is damaged or deleted can't be made again from the others",
            applied="nothing",
            next_step="see with buffer verify which chunks they are, and restore them from a "
            "version or a copy of the bucket",
        )
    try:
        return actions[args.action](args, ObstoreObjects(args.path))
    except OSError as error:
        raise LogError(str(error), next_step="see to bucket and credentials") from error


def _ls(args: argparse.Namespace, objects: Objects) -> int:
    from spark_eoc.buffer.objects.verify import survey_objects  # noqa: PLC0415  heavy

    report = survey_objects(objects)
    print(_json(report) if args.json else "\n".join(object_table(report)))
    return 0


def _verify(args: argparse.Namespace, objects: Objects) -> int:
    from spark_eoc.buffer.objects.verify import verify_objects  # noqa: PLC0415  heavy

    report = verify_objects(objects)
    if args.json:
        print(_json(report))
    else:
        for damage in report.damages:
            print(f"{damage.file} at byte {damage.position}: {damage.why}")
        verdict = f"{len(report.damages)} damages" if report.damages else "all whole"
        print(f"{len(report.groups)} groups, {report.chunks} chunks: {verdict}")
    return 1 if report.damages else 0


def _trim(args: argparse.Namespace, objects: Objects) -> int:
    from spark_eoc.buffer.objects import remove_object_consumer  # noqa: PLC0415  heavy
    from spark_eoc.buffer.objects.positions import read_object_positions  # noqa: PLC0415  heavy
    from spark_eoc.buffer.objects.trim import trim_committed  # noqa: PLC0415  heavy
    from spark_eoc.buffer.objects.verify import known_buffer_id  # noqa: PLC0415  heavy

    buffer_id = known_buffer_id(objects)
    check_consumer(args.forget, read_object_positions(objects))
    forgotten = args.forget is not None and remove_object_consumer(objects, args.forget)
    before, start = trim_committed(objects, buffer_id)
    facts = {"start_offset": start, "before": before, "forgotten": forgotten}
    print(json.dumps(facts) if args.json else f"starts at {start}, before at {before}")
    return 0


def _json(report: ObjectReport) -> str:
    return json.dumps(dataclasses.asdict(report))
