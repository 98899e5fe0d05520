"""Exactly-once into a Redis Cluster: one ledger entry in every slot that a batch writes to.

A script's keys lie in one slot, so a partition is applied slot by slot, and each slot's entry, in a
key of the ledger's that is hash-tagged into the slot, says what is there and who may write.

* **Register.** Before a task writes to slots it adds them to the writer's list of *touched* slots,
  beside the control entry, by a script that checks its token there. What it will write, as a
  fingerprint, is noted with them: a copy of the task with other rows is refused.
* **Claim.** The chunk's own script then makes the slot's entry its call's, unless the entry has a
  newer epoch.
* **Fence.** A new call first stores its token in the control entry, after which no older call can
  register, and then takes over the entry of every touched slot, and only then reads what is
  applied. A slot that is not in the list can't be written to by anybody.
* **Settle.** The close ends the right to write in every touched slot, reads the units there,
  and completes the batch in the control entry if they are what the tasks reported and nobody has
  registered meanwhile. That empties the list and notes for each of its slots the epoch at which
  it was settled: its *floor*.

An entry that is older than its slot's floor has lost acknowledged writes: refused by name when the
slot is written to, and, for all slots, by the first batch after any primary was restarted,
replaced or given slots.
"""
