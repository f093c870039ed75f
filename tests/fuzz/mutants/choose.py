"""Which of all possible bugs are seeded: the same for the same seed, and little else when code changes elsewhere."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from pathlib import Path

from tests.fuzz.failures import ROOT
from tests.fuzz.mutants import places
from tests.fuzz.mutants.equivalent import EQUIVALENT
from tests.fuzz.mutants.operators import Mutant, mutants_of, parses

#: bugs of one function
A_FUNCTION = 2


def chosen(seed: int, count: int, root: Path = ROOT) -> list[Mutant]:
    """So many bugs, shared out over the stages and the kinds of slips."""
    by_stage: dict[str, list[Mutant]] = defaultdict(list)
    for stage, file in places.files(root):
        by_stage[stage].extend(mutants_of(stage, file, root))
    whole = sum(share for share, _ in places.STAGES.values())
    picked = []
    for stage, (share, _) in places.STAGES.items():
        picked.extend(of_stage(by_stage[stage], seed, round(count * share / whole), root))
    return picked


def of_stage(all_: list[Mutant], seed: int, count: int, root: Path) -> list[Mutant]:
    """One of each kind in turn, none beside another."""
    by_kind: dict[str, list[Mutant]] = defaultdict(list)
    for mutant in sorted(
        all_, key=lambda m: hashlib.sha256(f"{seed} {m.id}".encode()).digest(), reverse=True
    ):
        by_kind[mutant.operator].append(mutant)
    picked: list[Mutant] = []
    functions: Counter[tuple[str, str]] = Counter()
    while len(picked) < count and any(by_kind.values()):
        for kind in sorted(by_kind):
            while by_kind[kind]:
                mutant = by_kind[kind].pop()
                where = mutant.file, mutant.function
                apart = all(mutant.file != m.file or outside(mutant.node, m.node) for m in picked)
                fresh = functions[where] < A_FUNCTION and apart and mutant.id not in EQUIVALENT
                if fresh and parses(mutant, root):
                    functions[where] += 1
                    picked.append(mutant)
                    break
    return picked[:count]


def outside(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[1] <= other[0] or other[1] <= one[0]
