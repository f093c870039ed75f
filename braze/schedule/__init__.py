"""LoopProgram -> Schedule: dependences, fusion, order, tiles, memory.

Eight rooms, lowest first: facts, memory, fusion, rewrites, cpu, gpu, forms, stage. Each says in its docstring what lives there and
what it may import. ``facts/choices.py`` holds every heuristic. Imports loops and base.
"""

from braze.schedule.stage.scheduler import schedule

__all__ = ["schedule"]
