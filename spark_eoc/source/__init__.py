"""`format("replayable_socket")`: options, offsets, planning batches, reading them."""
