"""What the forward saves for the backward: a minimum cut of the joint graph, by bytes.

Values that no incoming gradient reaches may be computed in either half. Those of the forward can be kept (it costs their
bytes) or computed again from others that are kept. The cheapest set to keep is a minimum cut between what exists at
the end of the forward and what the backward reads, with each value a pair of vertices whose edge weighs its
bytes (Chen et al. 2016 describe recomputation; the cut formulation is Zheng et al., "Fast and memory-efficient
recomputation", 2022). The flow solver is igraph's.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable

import torch
from torch.utils.checkpoint import CheckpointPolicy

from braze.aot.cut.flow import minimum_cut
from braze.aot.facts.symbols import is_size
from braze.aot.facts.views import bytes_of, is_on_gpu, readers, sees_memory
from braze.graph.calls.checkpoints import SAVING
from braze.graph.nodes.facts import InputRole, facts
from braze.graph.nodes.passes import is_impure
from braze.graph.nodes.specs import HALVES
from braze.graph.operators.operators import is_cheap, is_elementwise, is_reduction
from braze.runtime.operators.purity import may_draw
from braze.support.errors import InternalError
from braze.support.order import on_demand

aten = torch.ops.aten
Node = torch.fx.Node

#: a value of the forward -> what to make it again costs, in bytes that are kept
Again = Callable[[Node], float]
#: (joint graph's parts) -> the values to keep
Choice = Callable[["Halves"], set[Node]]

#: farther from its reader, a value costs more to make again: this much for each step
STEP_COST = 0.1
MOST_STEPS = 20
#: operators that lie at most between a value and the one that is kept in its stead
MOST_MADE_AGAIN = 8
#: what is kept besides may have this part of its bytes
SMALL = 1 / 16


class Halves:
    """Which node of a joint graph belongs where.

    ``forward``: needed for the user's results. ``behind``: reached by a tangent, so in the backward. ``read``: what
    the backward reads of the rest.
    """

    def __init__(
        self,
        graph: torch.fx.Graph,
        results: Iterable[Node],
        gradients: Iterable[Node],
        tangents: Collection[Node],
        written: Collection[Node],
    ) -> None:
        self.graph = graph
        self.results = list(results)
        self.gradients = list(gradients)
        #: inputs that the graph writes: their first contents are gone when the backward runs
        self.written = frozenset(written)
        self.forward = ancestors(self.results)
        self.behind = behind_forward(graph, tangents)
        #: what the backward must run though no gradient is made of it, such as checks
        self.effects = [n for n in graph.nodes if n in self.behind and n not in tangents and is_impure(n)]
        needed = ancestors([*self.gradients, *self.effects])
        ends = set(self.gradients)
        #: in order: all that the backward might read or make again
        self.choices = [n for n in graph.nodes if n in needed and n not in self.behind]
        self.read = {
            n for n in self.choices if n in ends or any(u in self.behind and u in needed for u in n.users)
        }
        self.needed = needed
        #: what the backward computes whatever is kept
        self.ends = [n for n in needed if n in self.behind or n in ends]
        self.forced = self._forced()
        self.compared = self._compared()
        #: what autograd does not save: what the program has in its hands and writes once the graph has run, or was made in inference mode
        self.rewritten = [n for n in self.choices if facts(n).written_after or facts(n).inference]
        self.unsaved = self._unsaved() | self._of_moved()
        #: what the program makes of that is kept itself where eager's formulas read both: a value may be saved for some of them only
        self.made_of_rewritten = {
            user
            for n in self.rewritten
            if n not in self.unsaved
            for user in readers(n)
            if user in self.forward
        }

    def _unsaved(self) -> frozenset[Node]:
        """What is written once the graph has run, or was made in inference mode, where no formula of eager's reads it.

        Autograd refuses a saved value that was written since, and to save one of inference mode: what eager saves in its stead has to be kept.
        A formula may give what it has saved as the gradient: that of ``cummax`` does, where there are no elements.
        """
        read = (n for n in self.rewritten if n not in self.gradients)
        return frozenset(n for n in read if all(map(self._is_of_program, readers(n))))

    def _of_moved(self) -> frozenset[Node]:
        """What derivatives alone make of a value that is given other memory once the graph has run: eager's backward makes it of what is there by then."""
        found: set[Node] = set()
        for n in self.choices:
            if n.op == "call_function" and n not in self.forward:
                if any(facts(read).moved_after or read in found for read in n.all_input_nodes):
                    found.add(n)
        return frozenset(found)

    def _is_of_program(self, node: Node) -> bool:
        """Whether a node is of the program alone: no derivative's, and none that a checkpoint runs again."""
        if node not in self.forward:
            return node not in self.needed
        return not facts(node).tangents and node not in self.forced

    def _forced(self) -> set[Node]:
        """Values inside checkpointed regions, which the backward makes again whatever they cost."""
        gone = set(self.written)  # inputs that hold something else by then, and views of them
        forced: set[Node] = set()
        for node in self.graph.nodes:
            if sees_memory(node) and node.args[0] in gone:
                gone.add(node)
            region = facts(node).checkpoint
            if region is None or node in self.behind or node in self.results or is_random(node):
                continue
            if facts(node).policy in SAVING:
                continue
            users = [u for u in node.users if u in self.forward]
            if all(facts(u).checkpoint == region for u in users):
                if not any(n in gone for n in node.all_input_nodes):
                    forced.add(node)
        return forced

    def _compared(self) -> frozenset[Node]:
        """Values that a gradient looks for its extreme in, of half types or made of such: made again, they would be rounded at other steps, and none be equal to it.

        What is a half one but for its type is kept as that one.
        """
        found: set[Node] = set()
        todo = [n for n in self.choices if n.target is aten.eq.Tensor and n not in self.forward]
        while todo:
            for value in todo.pop().all_input_nodes:
                if sees_memory(value) or value not in self.forward or _widens(value):
                    todo.append(value)
                elif any(map(_is_rounded, ancestors([value], lambda n: not fuses(n)))):
                    found.add(value)
        return frozenset(found)

    def can_be_saved(self, node: Node) -> bool:
        """Views and tuples cannot: their base or their parts can. The backward gets sizes apart.

        Nor can a copy in another layout, where what it copies can.
        """
        if facts(node).copy_in_layout and self.can_be_saved(node.args[0]):  # type: ignore[arg-type]
            return False
        return isinstance(node.meta.get("val"), (torch.Tensor, torch.SymFloat)) and not (
            sees_memory(node)
            or node.op == "get_attr"
            or node in self.written
            or node in self.forced
            or node in self.unsaved
        )

    def must_be_saved(self, node: Node) -> bool:
        """Whether a value of the forward may not be computed again, by a checkpoint's policy or since it is compared; views are no values."""
        must = facts(node).policy is CheckpointPolicy.MUST_SAVE or node in self.compared
        return must and self.is_made(node) and self.can_be_saved(node)

    def is_made(self, node: Node) -> bool:
        """Whether the forward makes a value: it needs it, or it comes beside one that it needs, as the batch's mean does."""
        if node.target is operator.getitem:
            node = node.all_input_nodes[0]
        return node in self.forward

    def is_made_again(self, node: Node) -> bool:
        """Whether the backward may compute what the forward computed."""
        if node.op == "placeholder" or self.must_be_saved(node) or facts(node).moved_after:
            return False
        if node.op == "get_attr" or node not in self.forward or node in self.forced:
            return True
        if node in self.made_of_rewritten and self.can_be_saved(node):
            return False
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            return node.op == "call_function" and node.target is not operator.getitem
        if is_random(node) or _is_of_complex(node):
            return False
        return sees_memory(node) or is_cheap(node.target)

    def has_memory(self, node: Node) -> bool:
        """Whether the forward has a value in memory, kept or not: it comes so, goes so, or is made or read whole."""
        return node.op != "call_function" or not fuses(node) or node in self.results or self._goes_whole(node)

    def _goes_whole(self, node: Node) -> bool:
        # gathers take what they read out of the kernel that makes it, or make it themselves
        readers = [u for u in node.users if u in self.forward and u.target is not aten.gather.default]
        return any(self._goes_whole(u) if sees_memory(u) else not fuses(u) for u in readers)

    def is_read_whole(self, node: Node) -> bool:
        """Whether an operator of the backward that fuses with nothing reads this from memory, through views or not."""
        for user in node.users:
            if user not in self.needed:
                continue
            if sees_memory(user) and user not in self.behind:
                if self.is_read_whole(user):
                    return True
            elif user in self.behind and user.op == "call_function" and not fuses(user):
                return True
        return False


def _is_of_complex(node: Node) -> bool:
    """Whether a node computes with complex numbers, which no kernel of ours does: made again, it is one more call."""
    values = (n.meta.get("val") for n in (node, *node.all_input_nodes))
    return not sees_memory(node) and any(isinstance(v, torch.Tensor) and v.is_complex() for v in values)


def _is_rounded(node: Node) -> bool:
    """Whether a node computes a value of a half type."""
    return node.op == "call_function" and getattr(node.meta.get("val"), "dtype", None) in HALVES


def _widens(node: Node) -> bool:
    """Whether a node gives a value of a half type in a longer one."""
    return node.target is aten._to_copy.default and _is_rounded(node.args[0]) and not _is_rounded(node)  # type: ignore[arg-type]


def is_random(node: Node) -> bool:
    """Whether a node, or the node that it is a part of, may draw random numbers."""
    target = node.target
    if target is operator.getitem and isinstance(node.args[0], Node):
        return is_random(node.args[0])
    return may_draw(target)


def behind_forward(graph: torch.fx.Graph, tangents: Collection[Node]) -> set[Node]:
    """What a joint graph computes in the backward alone: what tangents reach, and gradients that read none.

    A sum of the latter is another one where one of their tangents does not come in, so that it cannot be made beforehand.
    """
    return reached(graph, [*tangents, *(n for n in graph.nodes if facts(n).gradient)])


def reached(graph: torch.fx.Graph, tangents: Iterable[Node]) -> set[Node]:
    """The tangents, and all that is computed from them."""
    found = set(tangents)
    for node in graph.nodes:
        if node.op == "call_function" and any(n in found for n in node.all_input_nodes):
            found.add(node)
    return found


def ancestors(nodes: Iterable[Node], given: Callable[[Node], bool] = lambda node: False) -> set[Node]:
    """The nodes themselves, and all that they are computed from, down to what is ``given``."""
    found: set[Node] = set()
    todo = list(nodes)
    while todo:
        node = todo.pop()
        if node not in found:
            found.add(node)
            todo.extend(() if given(node) else node.all_input_nodes)
    return found


def backward_order(graph: torch.fx.Graph, ends: Iterable[Node], given: Callable[[Node], bool]) -> list[Node]:
    """The nodes of a backward in the order in which it runs them: ``ends``, each behind what it still lacks.

    ``given``: what comes in or is no computation. What is made again so stands before its first reader, and lives no longer than it must.
    """
    wanted = set(ends)
    made = [node for node in graph.nodes if node in wanted and not given(node)]
    return on_demand(made, lambda node: [n for n in node.all_input_nodes if not given(n)])


def default_choice(halves: Halves) -> set[Node]:
    """Keep what the backward reads, as eager does; views by their bases."""

    def keeps(node: Node) -> bool:
        # what an input held that the graph writes is gone by then
        reads_written = any(n in halves.written for n in node.all_input_nodes)
        return not is_size(node) and halves.can_be_saved(node) and (halves.is_made(node) or reads_written)

    return {n for n in ancestors(halves.read, lambda node: is_size(node) or keeps(node)) if keeps(n)}


def min_cut_choice(halves: Halves, again: Again = lambda node: 0.0) -> set[Node]:
    """Keep the fewest bytes from which the backward can make the rest by cheap operators, with what it costs to make them ``again``."""
    nodes = [n for n in halves.choices if not is_size(n)]
    number = {node: i for i, node in enumerate(nodes)}
    source, sink = 2 * len(nodes), 2 * len(nodes) + 1
    steps = _steps_to_readers(halves, nodes)
    far = _far_from_operands(halves, nodes)
    edges: list[tuple[int, int]] = []
    costs: list[float] = []

    def edge(a: int, b: int, cost: float) -> None:
        edges.append((a, b))
        costs.append(cost)

    sizes = {n: _bytes(n) for n in nodes}
    endless = 1e3 * (1 + sum(sizes.values())) * (1 + STEP_COST * MOST_STEPS)
    for node in nodes:
        i = number[node]
        cost = endless
        if halves.can_be_saved(node):
            cost = sizes[node] * (1 + STEP_COST * steps[node])
            if facts(node).role is InputRole.PARAMETER:
                cost *= 1e-6  # it stays anyway
        edge(2 * i, 2 * i + 1, cost)
        made_again = halves.is_made_again(node) and not (
            node in halves.forward
            and halves.can_be_saved(node)
            and (node in far or halves.is_read_whole(node))
        )
        if not made_again:
            edge(source, 2 * i, endless)
        elif node in halves.forward and again(node):
            edge(source, 2 * i, again(node))
        if node in halves.read:
            edge(2 * i + 1, sink, endless)
        for user in node.users:
            if user in number:
                edge(2 * i + 1, 2 * number[user], endless)
    value, front = minimum_cut(len(nodes) * 2 + 2, edges, costs, source, sink)
    if value >= endless:
        raise InternalError("BZ9023", "no set of saved values lets the backward run")
    kept = {node for node in nodes if 2 * number[node] in front and 2 * number[node] + 1 not in front}
    return _in_memory_already(halves, kept, again)


def _in_memory_already(halves: Halves, kept: set[Node], again: Again) -> set[Node]:
    """The kept values, with some made again from one of equal size that the forward has in memory anyway.

    So a softmax's exponentials are not written beside its argument, only to be kept in its stead.
    """
    out: set[Node] = set()
    for node in kept:
        found = (
            None if halves.has_memory(node) or halves.is_read_whole(node) else _origin(halves, node, again)
        )
        out |= found or {node}
    return out


def _origin(halves: Halves, node: Node, again: Again) -> set[Node] | None:
    """A value in memory and small ones from which elementwise operators make ``node``; None where it takes more."""
    most = _bytes(node)
    cost = 0.0
    small: set[Node] = set()
    for _ in range(MOST_MADE_AGAIN):
        target = node.target
        if not isinstance(target, torch._ops.OpOverload) or not halves.is_made_again(node):
            return None
        cost += again(node) if node in halves.forward else 0.0  # else it is made once, wherever
        if not (sees_memory(node) or is_elementwise(target)) or cost > most:
            return None
        large = []
        for argument in node.all_input_nodes:
            value = argument.meta.get("val")
            if isinstance(value, torch.SymFloat):
                small.add(argument)
            if not isinstance(value, torch.Tensor) or _is_constant(argument):
                continue
            if _bytes(argument) > SMALL * most:
                large.append(argument)
            elif halves.can_be_saved(argument):
                small.add(argument)
            else:
                return None
        if len(large) != 1 or _bytes(large[0]) > most:
            return None
        node = large[0]
        if halves.has_memory(node):
            return {node, *small} if halves.can_be_saved(node) else None
    return None


def _far_from_operands(halves: Halves, nodes: list[Node]) -> set[Node]:
    """What a GPU makes of a value that has gone through an operator that fuses with nothing meanwhile: of a residual stream.

    To make the sum again takes the stream before, and so on to its beginning. The backward needs the last sum first, so that one
    kernel would make all of them at its start, to live until each is needed.
    """
    place = {node: k for k, node in enumerate(nodes)}
    end = len(nodes)
    #: where the first operator reads a value, or what was fused from it, whole
    whole: dict[Node, int] = {}
    for node in reversed(nodes):
        found = [
            whole[u] if sees_memory(u) or fuses(u) else place[u]
            for u in node.users
            if u in place and u in halves.forward
        ]
        whole[node] = min(found, default=end)
    return {
        user
        for node in nodes
        if whole[node] < end and node.op == "call_function" and is_on_gpu(node.meta.get("val"))
        for user in readers(node)
        if user in place and place[user] > whole[node] and is_elementwise(user.target)
    }


def _is_constant(node: Node) -> bool:
    return not node.all_input_nodes and is_cheap(node.target)


def _steps_to_readers(halves: Halves, nodes: list[Node]) -> dict[Node, int]:
    """How many operators lie between a value and the backward's first reader of it."""
    steps: dict[Node, int] = {}
    for node in reversed(nodes):
        if node in halves.read:
            steps[node] = 0
        else:
            below = [steps[u] for u in node.users if u in steps]
            steps[node] = (
                min(MOST_STEPS, 1 + min(below, default=0)) if not sees_memory(node) else min(below, default=0)
            )
    return steps


def _bytes(node: Node) -> float:
    """Bytes of a value; of a number, and of no elements, those of a number, for nothing is free."""
    return bytes_of(node) or 8.0


def fuses(node: Node) -> bool:
    """Whether an operator becomes part of a kernel that reads its arguments as they are computed."""
    target = node.target
    if target is operator.getitem or not isinstance(target, torch._ops.OpOverload):
        return True
    return sees_memory(node) or is_cheap(target) or is_reduction(target)
