"""LoopProgram -> Schedule: dependences, fusion, order, tiles, memory.

``choices.py`` holds every heuristic. Imports loops and base.
"""

from braze.schedule.scheduler import schedule

__all__ = ["schedule"]
