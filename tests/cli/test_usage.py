"""Wrong usage, of every command: exit code 2, one line that names the option, nothing done."""

from __future__ import annotations

import argparse
import re
import shutil
from pathlib import Path

import pytest

from spark_eoc.buffer import ConsumerPosition, LineBlock, LogReader, LogWriter
from spark_eoc.cli.command import build_parser, main

RECEIVE = ["receive", "--buffer", "new"]
LISTEN = [*RECEIVE, "--listen", "127.0.0.1:9999"]
SEND = ["send", "--to", "127.0.0.1:1", "--name", "n"]
CHAOS = ["chaos", "query.py", "--redis", "--keys", "k:*"]
QUERY = ["chaos", "query.py", "--mariadb", "--query", "SELECT 1"]

#: (arguments, what the error has to say)
WRONG = [
    # demo
    (["demo", "--rows", "many"], "--rows: 'many' is not a whole number from 1,000 to 336,776"),
    (["demo", "--rows", "5"], "--rows: 5 is not from 1,000"),
    (["demo", "--rows", "400000"], "--rows: 400000 is not from 1,000 to 336,776"),
    (["demo", "--kills=-1"], "--kills: -1 is not from 0 to 1,000"),
    (["demo", "--kills", "x"], "--kills: 'x' is not a whole number"),
    (["demo", "--seed", "x"], "--seed: 'x' is not a whole number"),
    (["demo", "--folder", "."], "--folder: '.' is not empty"),
    # receive
    (RECEIVE, "one of the arguments --listen --connect is required"),
    ([*LISTEN, "--connect", "h:1"], "--connect: not allowed with argument --listen"),
    ([*RECEIVE, "--listen", "17557"], "--listen: '17557' is not host:port"),
    ([*RECEIVE, "--listen", "host:"], "--listen: 'host:' is not host:port"),
    ([*RECEIVE, "--listen", "h:70000"], "--listen: 'h:70000' is not host:port"),
    ([*RECEIVE, "--connect", "17557"], "--connect: '17557' is not host:port"),
    ([*LISTEN, "--retention", "1w"], "--retention is '1w'"),
    ([*LISTEN, "--segment-bytes", "64MiB"], "--segment-bytes is '64MiB'"),
    ([*LISTEN, "--segment-bytes", "1"], "--segment-bytes is '1'"),
    ([*LISTEN, "--max-buffer-bytes", "1000"], "--max-buffer-bytes is 1000"),
    ([*LISTEN, "--max-line-bytes", "0"], "--max-line-bytes is '0'"),
    ([*LISTEN, "--on-oversize-line", "drop"], "--on-oversize-line is 'drop'"),
    ([*LISTEN, "--flush-interval-ms", "-1"], "--flush-interval-ms is '-1'"),
    ([*LISTEN, "--takeover-ms", "x"], "--takeover-ms is 'x'"),
    ([*LISTEN, "--max-connections", "0"], "--max-connections is '0'"),
    ([*LISTEN, "--idle-timeout-ms", "x"], "--idle-timeout-ms is 'x'"),
    ([*LISTEN, "--max-bytes-per-second", "x"], "--max-bytes-per-second is 'x'"),
    ([*LISTEN, "--tls-cert", "query.py"], "--tls-cert and --tls-key work together"),
    ([*LISTEN, "--tls-ca", "query.py"], "--tls-ca asks for client certificates"),
    (
        [*LISTEN, "--tls-cert", "query.py", "--tls-key", "query.py"],
        "files can't be used (--tls-cert '",
    ),
    ([*LISTEN, "--tls-cert", "no", "--tls-key", "no"], "--tls-cert: there is no file"),
    ([*LISTEN, "--health-s", "5"], "--health-s does nothing without --json"),
    ([*LISTEN, "--json", "--health-s", "nan"], "--health-s: 'nan' is not a number of seconds"),
    (
        [*RECEIVE, "--connect", "h:1", "--idle-timeout-ms", "5"],
        "--idle-timeout-ms has no effect without --listen",
    ),
    (["receive", "--buffer", "s3://bucket", "--listen", "h:1"], "names no prefix"),
    (["receive", "--buffer", "/dbfs/x", "--listen", "h:1"], "--buffer is '/dbfs/x'"),
    # send
    (["send", "--to", "h", "--name", "n"], "--to: 'h' is not host:port"),
    (["send", "--to", "127.0.0.1:1", "--name", "a b"], "--name 'a b' is not 1 to 128"),
    ([*SEND, "--wait-s", "0"], "--wait-s: '0' is not a number of seconds above 0"),
    ([*SEND, "--wait-s", "inf"], "--wait-s: 'inf' is not a number of seconds"),
    ([*SEND, "--tls-key", "query.py"], "--tls-key does nothing without --tls-cert"),
    ([*SEND, "--tls-ca", "no"], "TLS files can't be used (--tls-ca 'no')"),
    ([*SEND, "no"], "there is no file 'no'"),
    ([*SEND, "."], "'.' is not a file"),
    # buffer
    (["buffer", "cat", "log", "--from", "x"], "--from: 'x' is not a whole number from 0"),
    (["buffer", "cat", "log", "--from=-1"], "--from: -1 is not from 0"),
    (["buffer", "cat", "log", "--count", "0"], "--count: 0 is not from 1"),
    (["buffer", "ls", "log", "--count", "1"], "--count does nothing for buffer ls"),
    (["buffer", "verify", "log", "--from", "0"], "--from does nothing for buffer verify"),
    (["buffer", "repair", "log", "--forget", "x"], "--forget does nothing for buffer repair"),
    (["buffer", "trim", "log", "--idle-days", "1"], "--idle-days does nothing for buffer trim"),
    (["buffer", "trim", "log", "--forget", "nobody"], "no consumer 'nobody'"),
    (["buffer", "trim", "log", "--forget", ""], "no consumer ''"),
    (["buffer", "expire", "log"], "expire needs --idle-days"),
    (["buffer", "expire", "log", "--idle-days=-1"], "--idle-days: '-1' is not a number of days"),
    (["buffer", "expire", "log", "--idle-days", "nan"], "--idle-days: 'nan'"),
    (["buffer", "ls", "log", "--forget", "x"], "belongs to buffer trim"),
    (["buffer", "repair", "s3://bucket/x"], "buffer repair works on a folder"),
    (["buffer", "ls", "s3://"], "names no prefix"),
    (["buffer", "cat", "s3://"], "names no prefix"),
    # chaos
    (["chaos", "no.py", *CHAOS[2:]], "there is no script 'no.py'"),
    ([*CHAOS, "--rows", "x"], "--rows: 'x' is not a whole number from 1"),
    ([*CHAOS, "--rows", "0"], "--rows: 0 is not from 1"),
    ([*CHAOS, "--rows", "5", "--lines", "lines"], "--rows does nothing beside --lines"),
    ([*CHAOS, "--lines", "no"], "--lines: there is no file 'no'"),
    ([*CHAOS, "--kills=-1"], "--kills: -1 is not from 0"),
    ([*CHAOS, "--rows", "11"], "--rows: 11 lines are too few for 5 kills"),
    ([*CHAOS, "--per-second", "0"], "--per-second: '0' is not a number of lines a second above 0"),
    ([*CHAOS, "--settle-s", "x"], "--settle-s: 'x' is not a number of seconds"),
    ([*CHAOS, "--seed", "x"], "--seed: 'x' is not a whole number"),
    ([*CHAOS, "--feed", "listen", "--to", "1"], "--to: '1' is not host:port"),
    ([*CHAOS, "--to", "h:1"], "--to does nothing without --feed listen"),
    ([*CHAOS, "--count", "n"], "--count does nothing without --query"),
    ([*CHAOS, "--setup", "x"], "--setup does nothing without --mariadb"),
    ([*CHAOS, "--redis-url", "redis://h"], "--redis-url does nothing beside --redis"),
    ([*CHAOS, "--report", "no/r.html"], "--report: there is no folder"),
    ([*CHAOS, "--report", "."], "--report: '.' is a folder"),
    ([*CHAOS, "--kinds", "meteor"], "name some of driver_python"),
    ([*CHAOS, "--kinds", "jvm,mariadb"], "add --mariadb"),
    ([*CHAOS, "--kinds", "network"], "--kinds: network is for tests in Python"),
    ([*CHAOS, "--kinds", "receiver", "--feed", "listen"], "add --feed buffer"),
    ([*CHAOS, "--kinds", "producer"], "add --feed listen or buffer"),
    ([*QUERY, "--kinds", "full"], "--kinds: full needs a server to fill up"),
    ([*CHAOS, "--expect", "no.such:function"], "--expect: 'no.such:function' can't be imported"),
    ([*CHAOS, "--", "--in", "{inputt}"], "{inputt} is no placeholder"),
    ([*CHAOS, "--", "{CheckPoint}"], "write {checkpoint}"),
    ([*CHAOS, "--", "{listen}"], "{listen} has no value here"),
    ([*CHAOS, "--", "--db={mysql_url}"], "give --mariadb or --mysql-url"),
    ([*CHAOS, "--feed", "listen", "--", "{input}"], "{input} has no value here"),
    ([*CHAOS, "--folder", "."], "--folder: '.' is not empty"),
    ([*CHAOS, "--folder", "lines"], "--folder: 'lines' is not a folder"),
    ([*CHAOS, "--lines", "empty"], "--lines: 'empty' is empty"),
    ([*CHAOS[:2], "--keys", "k", "--redis-url", "h:1"], "--redis-url: the URL does not begin"),
    ([*QUERY[:2], *QUERY[3:], "--mysql-url", "s3cret"], "--mysql-url: the URL does not begin"),
    (
        [*QUERY[:2], *QUERY[3:], "--mysql-url", "mysql://me:s3cret/@h:1/d"],
        "--mysql-url: the URL's port is not a number",
    ),
    (
        [*CHAOS[:2], "--keys", "k", "--redis-url", "redis://:s3cret/@h:1"],
        "--redis-url: the URL's port is not a number",
    ),
    (["chaos", "query.py"], "0 ways to read the sink"),
    ([*CHAOS, "--query", "x"], "2 ways to read the sink"),
    (["chaos", "query.py", "--query", "x"], "add --mariadb, or --mysql-url URL"),
    (["chaos", "query.py", "--keys", "x"], "add --redis, or --redis-url URL"),
    (["chaos", "query.py", "--rows-from", "nothing"], "--rows-from: 'nothing' can't be imported"),
    ([*QUERY, "--mysql-url", "mysql://h"], "--mysql-url does nothing beside --mariadb"),
    ([*QUERY, "--counters"], "--counters does nothing without --keys"),
    ([*QUERY, "--field", "f"], "--field does nothing without --keys"),
]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A buffer of three lines with one consumer; copied for each test."""
    path = tmp_path_factory.mktemp("buffer") / "log"
    writer = LogWriter.open(path)
    writer.append(LineBlock.from_lines([b"a", b"b", b"c"]), receive_time_us=0)
    writer.close()
    ConsumerPosition.open(path, "clicks").close()
    return path


@pytest.fixture
def folder(tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """That buffer, a script, and lines; the current folder."""
    shutil.copytree(log, tmp_path / "log")
    (tmp_path / "query.py").write_text("raise SystemExit('was started')")
    (tmp_path / "lines").write_text("x\n")
    (tmp_path / "empty").touch()
    monkeypatch.chdir(tmp_path)
    for name in ("SPARK_EOC_TOKEN", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def code_of(arguments: list[str]) -> int:
    """What the shell sees."""
    try:
        return main(arguments)
    except SystemExit as ended:
        return int(ended.code or 0)


def files(folder: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize(
    ("arguments", "said"), WRONG, ids=lambda it: " ".join(it) if isinstance(it, list) else ""
)
def test_wrong_usage_is_exit_code_2_and_names_the_option(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
):
    """However late it is found; nothing is created, changed or started."""
    before = files(folder)
    assert code_of(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[-1].startswith(f"spark-eoc {arguments[0]}: error: ")
    assert said in err
    assert "s3cret" not in err
    assert not re.search(r"\b_(?!ssl)[a-z]|invalid \w+ value", err), "a name of ours"
    assert files(folder) == before


@pytest.mark.parametrize("name", ["{user_id}", "{}", '{"a": 1}', "{mysql}", "user:{{tenant}}"])
def test_other_braces_are_the_scripts_own(folder: Path, name: str):
    """Only what is nearly a placeholder is taken for a misspelt one."""
    assert code_of([*CHAOS, "--kinds", "meteor", "--", name]) == 2  # for its kind
    args = build_parser().parse_args(CHAOS, argparse.Namespace(rest=[name]))
    from spark_eoc.cli.chaos_usage import check  # noqa: PLC0415

    check(args)


def test_no_help_shows_a_functions_name_or_a_bare_option_as_value():
    """Values are called what they are: N, S, FILE, HOST:PORT."""
    (subparsers,) = (
        action
        for action in build_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    for parser in subparsers.choices.values():
        for action in parser._actions:
            takes_value = action.nargs != 0 and action.choices is None
            assert not takes_value or action.metavar, action.option_strings


def test_help_has_the_exit_codes_in_one_table(capsys: pytest.CaptureFixture[str]):
    """For scripts."""
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    assert re.findall(r"^  (\d+) +\w", text, re.MULTILINE) == ["0", "1", "2", "130"]


def test_cat_from_beyond_the_end_says_what_there_is(
    folder: Path, capfdbinary: pytest.CaptureFixture[bytes]
):
    """At the end there is nothing, and nothing is wrong; exit code 1 beyond."""
    assert main(["buffer", "cat", "log", "--from", "3"]) == 0
    assert main(["buffer", "cat", "log", "--from", "4"]) == 1
    out, err = capfdbinary.readouterr()
    assert out == b""
    assert b"--from 4: the buffer holds records 0 up to, not including, 3" in err


@pytest.mark.parametrize("action", [["trim"], ["repair"], ["expire", "--idle-days", "1"]])
def test_a_locked_buffer_is_told_in_the_words_of_the_command(
    folder: Path, capsys: pytest.CaptureFixture[str], action: list[str]
):
    """It has neither host nor port nor a way to take over."""
    writer = LogWriter.open(folder / "log")
    try:
        assert main(["buffer", action[0], "log", *action[1:]]) == 1
        assert main(["receive", "--buffer", "log", "--listen", "127.0.0.1:9"]) == 1
    finally:
        writer.close()
    first, second = capsys.readouterr().err.splitlines()
    assert "stop that receiver or query first; ls, cat and verify work beside it" in first
    assert "give --takeover-ms to have a stopped writer killed" in second
    assert LogReader(folder / "log").end_offset() == 3


def test_a_send_that_fails_before_the_first_line_counts_none(
    folder: Path, capsys: pytest.CaptureFixture[str]
):
    """No "0 of 0 lines durable"; the error alone, and with --json the object for scripts."""
    send = ["send", "--to", "127.0.0.1:1", "--name", "n", "--wait-s", "0.2", "lines"]
    assert main(send) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "no receiver answered at 127.0.0.1:1 within 0.2 s" in err
    assert main([*send, "--json"]) == 1
    assert '"acknowledged": 0' in capsys.readouterr().out


def test_a_file_that_cannot_be_read_is_a_message(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """Not a traceback; exit code 1."""

    read = Path.read_bytes

    def refuse(path: Path) -> bytes:
        if path.name != "lines":  # a module that is imported meanwhile reads files too
            return read(path)
        raise PermissionError(13, "Permission denied", "lines")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    monkeypatch.setattr("spark_eoc.cli.chaos._servers", lambda *_: {})
    assert main([*CHAOS, "--lines", "lines"]) == 1
    assert capsys.readouterr().err == "spark-eoc: [Errno 13] Permission denied: 'lines'\n"


def test_a_report_that_cannot_be_saved_is_printed_all_the_same(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """It took minutes, and the disk may be full since."""

    class Report:
        exactly_once = True

        def __str__(self) -> str:
            return "exactly once"

        def save(self, path: Path) -> None:
            raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("spark_eoc.cli.chaos._chaos", lambda *_: Report())
    assert main([*CHAOS, "--report", "r.html"]) == 1
    out, err = capsys.readouterr()
    assert out == "exactly once\n"
    assert "No space left on device: 'r.html'" in err


@pytest.mark.usefixtures("mariadb_server")  # skips where there is none
def test_a_setup_that_the_server_refuses_is_a_message(
    folder: Path, capsys: pytest.CaptureFixture[str]
):
    """It names the statement; and what was started is gone."""
    before = files(folder)
    assert code_of([*QUERY, "--setup", "CREATE TABEL t (v INT)"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("spark-eoc chaos: error: --setup: 'CREATE TABEL t (v INT)': ")
    assert "SQL syntax" in err
    assert files(folder) == before
