"""All that compiled code needs when it runs: build, load, launch, cache, arenas.

Six rooms, lowest first: libraries, memory, triton, operators, gpu, call. Each says in its docstring what lives there and what it may
import. Imports native and support only: a cached model loads without the compiler.
"""
