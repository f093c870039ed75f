"""Decoders that the engine runs: plain modules that take (input_ids, positions)."""
