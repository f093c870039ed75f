"""Which size is captured next while a model serves: the one that steps asked for most, within a budget of memory."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from braze.serving.policy.data_parallel import Reduce, alone
from braze.serving.policy.dispatch import Key
from braze.support.record import record

#: how much more a size has to be asked for than one that is captured, to take its memory
WORTH_DROPPING = 2.0


@record
class Choice:
    """What to capture, what to let go of for it, or why nothing is done."""

    capture: Key | None = None
    drop: Key | None = None
    reason: str = ""


def choose(
    keys: Sequence[Key],
    heat: Mapping[Key, int],
    held: Mapping[Key, int],
    failed: Container[Key] = (),
    budget: int | None = None,
) -> Choice:
    """The next capture among ``keys``. ``heat``: how often each was asked for; ``held``: those captured, and their bytes.

    While the budget (bytes) lasts, the hottest; what it will take is judged by those that are captured. Then the hottest takes the
    place of the one that saves least for its bytes, if it is asked for at least twice as often.
    """
    missing = [key for key in keys if key not in held and key not in failed and heat.get(key)]
    if not missing:
        return Choice(reason="nothing that was asked for is missing")
    hottest = max(missing, key=lambda key: (heat[key], key[1].num_tokens))
    if budget is None or not held or sum(held.values()) + _expected(hottest, held) <= budget:
        return Choice(capture=hottest)
    coldest = min(held, key=lambda key: (heat.get(key, 0) / max(1, held[key]), key[1].num_tokens))
    if heat[hottest] < WORTH_DROPPING * max(1, heat.get(coldest, 0)):
        return Choice(reason="the budget is spent, and what it holds is asked for as often")
    return Choice(capture=hottest, drop=coldest)


def _expected(key: Key, held: Mapping[Key, int]) -> float:
    """The bytes that a key's recording will take, as many a token as the others took together."""
    return key[1].num_tokens * sum(held.values()) / sum(k[1].num_tokens for k in held)


def choose_together(
    keys: Sequence[Key],
    heat: Mapping[Key, int],
    held: Mapping[Key, int],
    failed: Container[Key] = (),
    budget: int | None = None,
    reduce: Reduce = alone,
) -> Choice:
    """The same choice on all data-parallel ranks, which all call it: by what all have asked for, and the memory of the fullest.

    A key that failed on one rank is captured on none.
    """
    rows = reduce([n for key in keys for n in (heat.get(key, 0), held.get(key, -1), key in failed)])
    heats = {key: sum(row[3 * i] for row in rows) for i, key in enumerate(keys)}
    bytes_held = {
        key: max(row[3 * i + 1] for row in rows)
        for i, key in enumerate(keys)
        if all(row[3 * i + 1] >= 0 for row in rows)
    }
    broken = {key for i, key in enumerate(keys) if any(row[3 * i + 2] for row in rows)}
    return choose(keys, heats, bytes_held, broken, budget)


def unanimous(done: bool, reduce: Reduce = alone) -> bool:
    """Whether every rank has done it; all ranks call it."""
    return all(row[0] for row in reduce([int(done)]))
