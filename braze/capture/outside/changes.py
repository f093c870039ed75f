"""What the program has written outside by now."""

from __future__ import annotations

from typing import Any

from braze.capture.outside import definitions
from braze.capture.outside.shadows import DictShadow
from braze.capture.state.trace import Trace


def written(t: Trace) -> list[Any]:
    """What the program has written outside by now, to be compared with a later answer."""
    found: list[Any] = [
        len(t.done.replays),
        len(t.done.draws),
        len(t.done.seeds),
        [h.removed for h in t.done.hooks.values()],
    ]
    for shadow in (*t.outside.shadows, *t.outside.instance_dicts):
        if isinstance(shadow, DictShadow):
            new, gone = shadow.changed_keys()
            if new or gone:
                found.append((id(shadow), [(id(k), id(v)) for k, v in new], list(map(id, gone))))
        elif shadow.changed():
            found.append((id(shadow), list(map(id, shadow.view))))
    for node in t.done.slotted:
        found.append((id(node), [(k, id(v)) for k, v in (node.slots or {}).items()]))
    for space in t.outside.globals.values():
        found += [(k, id(v)) for k, v in space.written.items()]
    found += [(id(owner), name, id(value)) for owner, name, value in definitions.written(t.done)]
    found += [(id(cell), id(value)) for cell, value in t.done.cells_written.values()]
    return found
