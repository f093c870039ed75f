"""All that compiled code needs when it runs: build, load, launch, cache, arenas.

Imports native and support only: a cached model loads without the compiler.
"""
