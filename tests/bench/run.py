"""`make bench`: runs every benchmark of this folder, one after the other, and collects a table.

A benchmark is a script that prints JSON lines on stdout, one for each figure, and whatever it
likes on stderr. Both sides of a figure are measured in the same run, taking turns:

    {"what": "source to a no-op sink", "against": "the same Arrow batches made in memory",
     "ratio": 0.91, "at_least": 0.8, "unit": "rows/s", "ours": 1270000, "theirs": 1390000}

Only "what" and "ratio" (or "value", with "unit") are required; "at_most" may stand in for
"at_least". Exit code 1 when a script failed; a figure that misses its mark is shown, not hidden.

    python tests/bench/run.py [--only NAME ...] [--write README.md] [--json]
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
BEGIN, END = "<!-- figures: written by `make bench` -->", "<!-- end of figures -->"


def main() -> int:
    """Runs, prints, and writes the table into a file where asked to."""
    args = parse()
    figures, failed = [], []
    for script in scripts(args.only):
        begun = time.monotonic()
        print(f"bench: {script.stem} ...", file=sys.stderr, flush=True)
        found, ok = run(script)
        figures += found
        if not ok:
            failed.append(script.stem)
        seconds = time.monotonic() - begun
        print(f"bench: {script.stem} took {seconds:.0f} s", file=sys.stderr, flush=True)
    facts = machine()
    text = f"{facts}\n\n{table(figures)}" if figures else f"{facts}\n\nNo figures."
    print(json.dumps({"machine": facts, "figures": figures}) if args.json else text)
    if args.write and figures:
        write(args.write, text)
    for name in failed:
        print(f"bench: {name} FAILED", file=sys.stderr)
    return 1 if failed else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Runs the benchmarks and collects their ratios.")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="file names without .py")
    parser.add_argument("--write", type=Path, help="put the table between this file's markers")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


def scripts(only: list[str] | None) -> list[Path]:
    """Every script of the folder but this one, in the order of their names."""
    helpers = {"run", "__init__", "conftest"}
    found = sorted(
        path
        for path in HERE.glob("*.py")
        if path.stem not in helpers and not path.stem.startswith("_")
    )
    if not only:
        return found
    unknown = set(only) - {path.stem for path in found}
    if unknown:
        sys.exit(f"no such benchmark: {', '.join(sorted(unknown))}")
    return [path for path in found if path.stem in only]


def run(script: Path) -> tuple[list[dict[str, object]], bool]:
    """The script's figures, and whether it ended well."""
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent.parent), "PYTHONUNBUFFERED": "1"}
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    environment.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    environment.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    done = subprocess.run(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        env=environment,
        text=True,
        check=False,
    )
    figures = []
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            figures.append(json.loads(line))
        elif line.strip():
            print(line, file=sys.stderr)
    return figures, done.returncode == 0 and bool(figures)


def machine() -> str:
    """Where it was measured: without that a figure says little."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    versions = ", ".join(
        f"{name} {importlib.metadata.version(name)}"
        for name in ("pyspark", "pyarrow", "redis", "pymysql")
    )
    return (
        f"{os.cpu_count()} cores ({processor()}), {memory:.0f} GiB, {platform.system()} "
        f"{platform.machine()}, Python {platform.python_version()}, {versions}; "
        f"load before {os.getloadavg()[2]:.1f}."
    )


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def table(figures: list[dict[str, object]]) -> str:
    """A Markdown table, one figure a row."""
    rows = [
        "| what | against | ratio | wanted | measured |",
        "|---|---|---|---|---|",
    ]
    for figure in figures:
        cells = (
            figure["what"],
            figure.get("against", ""),
            outcome(figure),
            wanted(figure),
            measured(figure),
        )
        rows.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    return "\n".join(rows)


def outcome(figure: dict[str, object]) -> str:
    if "ratio" in figure:
        return f"{float(figure['ratio']):.2f}"
    return f"{number(figure['value'])} {figure.get('unit', '')}".strip()


def wanted(figure: dict[str, object]) -> str:
    if "at_least" in figure:
        return f"≥ {number(figure['at_least'])}"
    return f"≤ {number(figure['at_most'])}" if "at_most" in figure else ""


def measured(figure: dict[str, object]) -> str:
    if "ours" not in figure:
        return ""
    text = number(figure["ours"])
    if "theirs" in figure:
        text += f" to {number(figure['theirs'])}"
    return f"{text} {figure.get('unit', '')}".strip()


def number(value: object) -> str:
    number = float(value)
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"


def write(path: Path, text: str) -> None:
    content = path.read_text()
    before, begin, rest = content.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        sys.exit(f"{path} has no markers {BEGIN} and {END}")
    path.write_text(f"{before}{begin}\n{text}\n{end}{after}")


if __name__ == "__main__":
    sys.exit(main())
