"""Bytecode instructions by family; version ranges with since= and until=."""
