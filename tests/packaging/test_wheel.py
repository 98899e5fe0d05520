"""The wheel, installed where the source is gone."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

SMOKE = """
import sys
from pathlib import Path
import spark_eoc
home = Path(spark_eoc.__file__).resolve()
assert Path(sys.prefix).resolve() in home.parents, home
from pyspark.sql import SparkSession
spark = (SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
         .config("spark.driver.host", "127.0.0.1").getOrCreate())
schema = (spark.readStream.format("replayable_socket").option("bufferPath", sys.argv[1])
          .option("includeOffset", "true").load().schema)
print("RESULT", schema.simpleString())
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy of what git would publish, so nothing that lies around gets in."""
    if int(version("setuptools").partition(".")[0]) < 77:
        message = "building needs setuptools 77, which the extra `test` brings"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "setup.cfg", "README.md", "LICENSE"):
        (source / name).write_bytes((ROOT / name).read_bytes())
    copy_package(ROOT / "spark_eoc", source / "spark_eoc")
    for extra in ROOT.glob("pyspark_*"):
        copy_package(extra, source / extra.name)
    target = tmp_path_factory.mktemp("dist")
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    run([*pip, "-w", str(target), str(source)], cwd=target)
    (built,) = target.glob("*.whl")
    return built


def copy_package(source: Path, target: Path) -> None:
    files = [source] if source.is_file() else [path for path in source.rglob("*") if path.is_file()]
    for path in files:
        if "__pycache__" not in path.parts:
            place = target / path.relative_to(source) if source.is_dir() else target
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(path.read_bytes())


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """bin folder of a new environment with the wheel, and this one's dependencies only."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=False, symlinks=True)
    site = next(folder.glob("lib/python*/site-packages"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    # On the path, but not processed as a site folder: an editable install there stays unseen.
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return folder / "bin"


def run(command: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    # Spark looks for sources with the driver's Python, and runs tasks with the workers'.
    environment |= dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), command[0])
    environment["SPARK_LOCAL_IP"] = "127.0.0.1"
    result = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=200
    )
    assert result.returncode == 0, result.stderr[:3000]
    return result


def test_the_wheel_holds_every_module_and_nothing_else(wheel):
    """A package that pyproject.toml forgets would be missing only at the user's."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    modules = {
        str(path.relative_to(ROOT))
        for path in ROOT.joinpath("spark_eoc").rglob("*")
        if (path.suffix == ".py" or path.name == "py.typed") and "autoload" not in path.parts
    }
    assert {name for name in names if name.startswith("spark_eoc/")} == modules
    rest = {name for name in names if not name.startswith("spark_eoc/")}
    assert all(name.startswith(("spark_eoc-", "pyspark_")) for name in rest), rest


def test_the_installed_package_registers_its_source_by_itself(installed, tmp_path):
    """With the wheel and without the source, Spark knows the format, without `register`."""
    result = run([str(installed / "python"), "-c", SMOKE, str(tmp_path / "buffer")], tmp_path)
    assert "RESULT struct<value:string,offset:bigint>" in result.stdout


def test_the_command_is_installed(wheel):
    """`spark-eoc` is an entry point of the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (entry_points,) = (name for name in archive.namelist() if name.endswith("entry_points.txt"))
        assert "spark-eoc = spark_eoc.cli:main" in archive.read(entry_points).decode()
