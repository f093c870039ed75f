"""Stretches of launches on a GPU that one call from Python makes: no operator of PyTorch's stands between them.

What the host allocates for one of them is allocated before the first, and what it lets go of after one goes after the last. A stretch
ends where memory is wanted behind a release, so that the call has as much at once as if each launch were alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from braze.codegen.host.text import indented, tuple_text


@dataclasses.dataclass(slots=True)
class Run:
    """Launches one after another: (function, the host's expressions for its buffers, for its sizes)."""

    name: str
    launches: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = dataclasses.field(default_factory=list)
    before: list[str] = dataclasses.field(default_factory=list)  # statements of the host
    after: list[str] = dataclasses.field(default_factory=list)

    def takes(self, allocations: Sequence[str]) -> bool:
        """Whether a launch that needs these may be a part of it."""
        return not (allocations and self.after)

    def binding(self) -> list[str]:
        """What binds the function that makes all launches; nothing where there is one, which is called by itself."""
        if len(self.launches) == 1:
            return []
        buffers, sizes = self._arguments()
        place = {text: k for k, text in enumerate((*buffers, *sizes))}
        rows = [
            f"({function}, {tuple_text(tuple(str(place[text]) for text in (*given, *numbers)))}),"
            for function, given, numbers in self.launches
        ]
        return [f"{self.name} = runtime.run((", *indented(rows), f"), {len(buffers)}, {len(sizes)})"]

    def lines(self) -> list[str]:
        """The statements that make the launches."""
        function, buffers, sizes = self.launches[0]
        if len(self.launches) > 1:
            function, (buffers, sizes) = self.name, self._arguments()
        return [*self.before, f"{function}({', '.join((*buffers, *sizes))})", *self.after]

    def _arguments(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The buffers and the sizes of all launches, each once."""
        buffers = dict.fromkeys(text for _, given, _ in self.launches for text in given)
        sizes = dict.fromkeys(text for _, _, numbers in self.launches for text in numbers)
        return tuple(buffers), tuple(sizes)
