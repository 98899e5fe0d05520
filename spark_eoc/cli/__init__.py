"""The command ``spark-eoc``; each subcommand is one module with ``add_parser`` and ``run``."""

from spark_eoc.cli.command import main

__all__ = ["main"]
