"""Travel by value: whatever Spark pickles of this package runs where the package is absent."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import subprocess
import sys
from types import ModuleType, SimpleNamespace

import pytest
from pyspark import cloudpickle
from pyspark.sql.types import StructType

import spark_eoc
from spark_eoc.buffer.block import LineBlock
from spark_eoc.buffer.writer import LogWriter
from spark_eoc.registration import travel_by_value

#: These never travel: they run where the package is installed, or are only names.
STAYS = ("spark_eoc.cli", "spark_eoc.testing", "spark_eoc.autoload")

#: `-I` leaves site-packages on the path, where the package may be installed: it is refused there.
ABSENT = """
import pickle, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("spark_eoc", "pyspark_eoc"):
            raise ModuleNotFoundError(f"{name} was asked for, and is not here", name=name)

sys.meta_path.insert(0, Absent())
things = pickle.load(open(sys.argv[1], "rb"))
"""

#: What to do with a public object once it has arrived; `thing` is the object, `folder` a buffer
#: of three lines. An object that isn't named here is loaded and shown.
RUNS = {
    "ReplayableSocketSource": """
from pyspark.sql.datasource import CaseInsensitiveDict
source = thing(CaseInsensitiveDict({"bufferPath": folder, "includeOffset": "true"}))
assert source.schema() == "value STRING, offset BIGINT"
from pyspark.sql.types import StructType
schema = StructType().add("value", "string").add("offset", "long")
planner = source.streamReader(schema)
start = planner.initialOffset()
end = planner.latestOffset(start, None)
partitions = planner.partitions(start, end)
from pyspark import cloudpickle
task, parts = pickle.loads(cloudpickle.dumps((planner, partitions)))
rows = [row for part in parts for batch in task.read(part) for row in batch.to_pylist()]
assert rows == [{"value": v, "offset": n} for n, v in enumerate("abc")], rows
planner.commit(end)
planner.stop()
""",
    "errors": """
for kind in vars(thing).values():
    if isinstance(kind, type) and issubclass(kind, thing.SparkEocError):
        again = pickle.loads(pickle_dumps(kind("it", next_step="mend", row=3)))
        assert (type(again).__name__, again.facts) == (kind.__name__, {"row": 3})
        assert "mend" in str(again)
""",
    "register": """
class Spark:
    class dataSource:
        register = staticmethod(lambda source: names.append(source.name()))
names = []
try:
    thing(Spark)
except KeyError as missing:
    # There is nothing to register by value where the package itself is missing.
    assert "spark_eoc" in str(missing)
""",
}


@pytest.fixture
def folder(tmp_path):
    writer = LogWriter.open(tmp_path / "buffer")
    writer.append(LineBlock.from_lines([b"a", b"b", b"c"]), receive_time_us=1)
    writer.sync()
    writer.close()
    return tmp_path / "buffer"


def run_isolated(tmp_path, things, code, *arguments):
    """Loads what was pickled by value in an interpreter without the package, and runs `code`."""
    travel_by_value()
    file = tmp_path / "things.pickle"
    file.write_bytes(cloudpickle.dumps(things))
    script = ABSENT + code
    done = subprocess.run(
        [sys.executable, "-I", "-c", script, str(file), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.compat
@pytest.mark.parametrize("name", sorted(spark_eoc.__all__))
def test_every_public_object_travels_and_runs(name, tmp_path, folder):
    """Connect's workers, and the runner of a streaming source, may lack the package."""
    thing = getattr(spark_eoc, name)
    if isinstance(thing, ModuleType):
        # In a worker of pytest-xdist a module's loader is pytest's, and holds open files.
        thing = SimpleNamespace(**{k: v for k, v in vars(thing).items() if isinstance(v, type)})
    code = (
        "thing, folder = things, sys.argv[2]\n"
        "from pyspark.cloudpickle import dumps as pickle_dumps\n" + RUNS.get(name, "repr(thing)\n")
    )
    run_isolated(tmp_path, thing, code, folder)


@pytest.mark.compat
def test_a_task_gets_only_the_code_that_reads(tmp_path):
    """It travels with every task: loading writer and receiver too was most of what a small
    partition costs."""
    travel_by_value()
    source = spark_eoc.ReplayableSocketSource({"bufferPath": str(tmp_path)})
    whole = cloudpickle.dumps(source)
    reader = source.streamReader(StructType().add("value", "string"))
    task = cloudpickle.dumps((reader, source))
    assert len(task) < len(whole) / 3
    for name in (b"LogWriter", b"Receiver", b"ConsumerPosition"):
        assert name in whole
        assert name not in task


def modules():
    """Every module that may travel."""
    for found in pkgutil.walk_packages(spark_eoc.__path__, "spark_eoc."):
        if not found.name.startswith(STAYS):
            yield importlib.import_module(found.name)


def own_things(module: ModuleType):
    """Classes, functions and constants that a module defines, private ones included."""
    for name, thing in vars(module).items():
        if name.startswith("__") or isinstance(thing, ModuleType):
            continue
        if getattr(thing, "__module__", module.__name__) == module.__name__ and (
            inspect.isclass(thing) or inspect.isfunction(thing)
        ):
            yield name, thing


@pytest.mark.compat
def test_every_class_and_function_of_every_module_travels(tmp_path):
    """Whatever a later change makes a task need is fit to travel already."""
    travel_by_value()
    things = {}
    for module in modules():
        for name, thing in own_things(module):
            try:
                cloudpickle.dumps(thing)
            except Exception as error:  # noqa: BLE001  whatever it is, it says which object
                pytest.fail(f"{module.__name__}.{name} can't be pickled by value: {error!r}")
            things[f"{module.__name__}.{name}"] = thing
    assert len(things) > 50
    out = run_isolated(tmp_path, things, "print(len(things))")
    assert int(out) == len(things)


def test_by_value_is_what_makes_it_so(tmp_path, monkeypatch):
    """The control: pickled by name, the same object can't even be loaded there."""
    travel_by_value()
    cloudpickle.unregister_pickle_by_value(spark_eoc)
    try:
        monkeypatch.setattr(sys.modules[__name__], "travel_by_value", lambda: None)
        with pytest.raises(AssertionError, match="is not here"):
            run_isolated(tmp_path, spark_eoc.ReplayableSocketSource, "")
    finally:
        cloudpickle.register_pickle_by_value(spark_eoc)
