"""The harness: prove on real Spark and real servers that a query is exactly once.

* ``plugin``: pytest fixtures (servers, a warm session, seeds); ``servers``, ``ports``, ``reaper``,
  ``wait``, ``session``: what they are made of.
* ``job`` and ``workload``: a user's script; ``processes``: its parts, to be killed or stopped;
  ``kills``: a schedule from a seed; ``supervisor``: restarts the script and carries it out.
* ``proxy``: what networks do to connections.
* ``transcript`` and ``feeder``: producers that write down what they sent and were told;
  ``evidence`` reads buffer, rows and ledger without the product's code; ``checker`` compares.
* ``rig`` puts these together; ``failpoints`` kills at each named step, once for each sink:
  ``python -m spark_eoc.testing.failpoints``.
* ``chaos``: anybody's script under kills, with ``inputs`` that feed it, ``rows`` that read its
  sink, its ``history`` and the ``report``; ``eoc_chaos`` and ``spark-eoc chaos`` are made of it.
* ``surgery`` edits checkpoints, and ``operating`` starts a query on them: ``eoc_surgery``.

Nothing in the product imports this package.
"""
