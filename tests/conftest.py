"""Everything that tests share is shipped in ``spark_eoc.testing.plugin``."""
