"""What the program has written outside by now."""

from __future__ import annotations

from typing import Any

from braze.capture.facts.records import Source, Step
from braze.capture.outside import definitions
from braze.capture.outside.shadows import DictShadow
from braze.capture.state.trace import Trace


def so_far(t: Trace) -> list[Any]:
    """What the program has written outside by now, to be compared with a later answer."""
    found: list[Any] = [
        len(t.done.replays),
        len(t.done.draws),
        len(t.done.seeds),
        [h.removed for h in t.done.hooks.values()],
    ]
    for shadow in (*t.outside.shadows, *t.outside.instance_dicts.values()):
        if isinstance(shadow, DictShadow):
            new, gone = shadow.changed_keys()
            if new or gone:
                found.append((id(shadow), [(id(k), id(v)) for k, v in new], list(map(id, gone))))
        elif shadow.changed():
            found.append((id(shadow), list(map(id, shadow.view))))
        found += [(id(shadow), id(k), id(v)) for k, v in shadow.later.items.values()]
    for node in t.done.slotted:
        found.append((id(node), [(k, id(v)) for k, v in (node.slots or {}).items()]))
    for space in t.outside.globals.values():
        found += [(k, id(v)) for k, v in space.written.items()]
    found += [(id(owner), name, id(value)) for owner, name, value in definitions.new_values(t.done)]
    found += [(id(cell), id(value)) for cell, value in t.done.cells_written.values()]
    return found


def may_be_one(t: Trace) -> list[tuple[Source, ...]]:
    """Places of objects of one class, of which one was written: in a later call as in this no two of them may be the same object.

    What was written by the one way would be read by the other. What two places share in this call is one node by now.
    """
    shadows = [s for s in t.outside.shadows if differs(s)]
    shadows += [s for s in t.outside.instance_dicts.values() if differs(s)]
    kinds = {type(s.node.real) for s in shadows} | {type(node.real) for node in t.done.slotted}
    if not kinds:
        return []
    places: dict[type, list[Source]] = {kind: [] for kind in kinds}
    for node in t.outside.tree.order:
        kind = type(node.real)
        if (
            kind in kinds
            and node.step is not Step.CONSTANT
            and t.outside.tree.known.get(id(node.real)) is node
        ):
            places[kind].append(node.source)
    return [tuple(dict.fromkeys(found)) for found in places.values() if len(found) > 1]


def differs(shadow: Any) -> bool:
    """Whether a container or the attributes of an object are other ones than at first."""
    return bool(shadow.changed())
