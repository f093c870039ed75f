"""The configuration of a served model: every field checked, with where its value came from.

A value is the one given, else the environment's (``BRAZE_SERVING_LEVEL``...), else what the level brings with it, else the default.
Fields that contradict each other are refused (BZ7102), as are unknown ones (BZ7101) and values that a field does not take (BZ7103).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from braze.options import near
from braze.serving.policy import levels, modes
from braze.serving.policy.fields import BY_NAME, FIELDS, PREFIX, refuse
from braze.serving.policy.levels import CompilationLevel
from braze.serving.policy.modes import CUDAGraphMode
from braze.support.errors import UserError
from braze.support.record import record

GIVEN, ENVIRONMENT, DEFAULT = "given", "environment", "default"


@record
class Source:
    """Where a field's value comes from: ``given``, ``environment``, ``default``, or the name of a preset; and what it was there."""

    kind: str
    said: Any = None

    @property
    def by_user(self) -> bool:
        """Whether the user chose it: no rule changes it."""
        return self.kind in (GIVEN, ENVIRONMENT)


class CompilationConfig:
    """How a model is compiled and recorded. Fields by keyword: see ``policy/fields.py``, ``docs/serving.md``, or ``explain()``.

    Immutable, but for ``static_forward_context``, where layers enter themselves by name.
    """

    level: CompilationLevel
    use_cudagraph: bool
    cudagraph_mode: CUDAGraphMode
    cudagraph_capture_sizes: tuple[int, ...] | str | None
    cuda_graph_sizes: tuple[int, ...]
    max_cudagraph_capture_size: int | None
    splitting_ops: tuple[str, ...] | None
    split: str
    cudagraph_copy_inputs: bool
    use_inductor: bool
    compile_sizes: tuple[int | str, ...] | None
    compile_ranges_endpoints: tuple[int, ...]
    inductor_compile_config: Mapping[str, Any]
    custom_ops: tuple[str, ...]
    debug_dump_path: str
    cache_dir: str
    pool: str
    capture: str
    memory_budget: int | None
    verify: float
    static_forward_context: dict[Any, Any]
    sources: Mapping[str, Source]

    def __init__(self, *, environ: Mapping[str, str] | None = None, **given: Any) -> None:
        """``environ``: in place of the process's environment."""
        environ = os.environ if environ is None else environ
        values, sources = _gathered(given, _from_environment(environ))
        _settle_graphs(values, sources)
        _settle_operators(values, sources)
        _settle_sizes(values, sources)
        _check(values, sources)
        values["inductor_compile_config"] = dict(values["inductor_compile_config"])
        self.__dict__.update(values)
        self.__dict__["static_forward_context"] = {}
        self.__dict__["sources"] = sources

    def __setattr__(self, name: str, value: Any) -> None:
        hint = "make another: config.replace(...)" if name in BY_NAME else near(name, BY_NAME)
        raise UserError("BZ7101", f"CompilationConfig.{name} cannot be assigned", hints=[hint])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CompilationConfig):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in BY_NAME)

    def __hash__(self) -> int:
        return hash(self.factors())

    def __repr__(self) -> str:
        said = [f"{n}={getattr(self, n)!r}" for n, source in self.sources.items() if source.by_user]
        return f"CompilationConfig({', '.join(said)})"

    def replace(self, **changes: Any) -> CompilationConfig:
        """The same with other values given; layers are kept."""
        said = {name: source.said for name, source in self.sources.items() if source.by_user}
        made = CompilationConfig(environ={}, **{**said, **changes})
        made.static_forward_context.update(self.static_forward_context)
        return made

    def factors(self) -> tuple[tuple[str, Any], ...]:
        """What of this changes compiled code, as (field, value): a part of the cache's key. No sizes of captures, no paths."""
        return tuple(
            (field.name, tuple(sorted(value.items())) if isinstance(value, dict) else value)
            for field in FIELDS
            if field.compiled
            for value in [getattr(self, field.name)]
        )

    def compiler_name(self) -> str:
        """Which compiler the pieces get: braze's kernels, or eager's operators."""
        return "braze" if self.use_inductor else "eager"

    def uses_custom_op(self, name: str, default: bool = True) -> bool:
        """Whether the operator ``name`` (with its library or without) is called as a custom operator, or traced through."""
        short = name.rpartition("::")[2]
        said = {word.lstrip("+-"): word[0] == "+" for word in self.custom_ops if word[0] in "+-"}
        for known in (name, short):
            if known in said:
                return said[known]
        if "all" in self.custom_ops:
            return True
        return False if "none" in self.custom_ops else default

    def dump_folder(self, rank: int = 0) -> Path | None:
        """Where a rank leaves what every stage made; None: nowhere."""
        return Path(self.debug_dump_path) / f"rank_{rank}" if self.debug_dump_path else None

    def explain(self) -> str:
        """Every field with its value, where that came from, and whether it has an effect."""
        width = max(map(len, BY_NAME))
        idle = _without_effect(self)
        lines = []
        for name in BY_NAME:
            value = getattr(self, name)
            shown = value.name if isinstance(value, (CUDAGraphMode, CompilationLevel)) else repr(value)
            note = f"; no effect: {idle[name]}" if name in idle else ""
            lines.append(f"{name:<{width}}  {shown}  ({_source_words(name, self.sources[name])}{note})")
        return "\n".join(lines)


def configuration(value: Any) -> CompilationConfig:
    """A configuration, or that in an engine's; BZ7103 for anything else."""
    found = getattr(value, "compilation_config", value)
    if not isinstance(found, CompilationConfig):
        raise refuse("config", value, "a CompilationConfig, or an engine's Config")
    return found


def _source_words(name: str, source: Source) -> str:
    return f"environment: {BY_NAME[name].variable}" if source.kind == ENVIRONMENT else source.kind


def _from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The fields that variables set; one that begins as ours and is none is refused."""
    variables = {field.variable: field.name for field in FIELDS}
    found = {}
    for variable, text in environ.items():
        if not variable.startswith(PREFIX):
            continue
        if variable not in variables:
            raise UserError(
                "BZ7101", f"unknown environment variable {variable}", hints=[near(variable, variables)]
            )
        if text:
            found[variables[variable]] = text
    return found


def _gathered(
    given: Mapping[str, Any], environment: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, Source]]:
    """The value of each field by precedence, and where it came from."""
    for name in given:
        if name not in BY_NAME:
            raise UserError("BZ7101", f"CompilationConfig has no field {name!r}", hints=[near(name, BY_NAME)])
    chosen = given.get("level", environment.get("level"))
    preset = levels.OF_LEVEL[CompilationLevel.NO_COMPILATION] if chosen is None else levels.parse(chosen)
    brought = dict(preset.values)
    values: dict[str, Any] = {}
    sources: dict[str, Source] = {}
    for field in FIELDS:
        for kind, there in ((GIVEN, given), (ENVIRONMENT, environment), (preset.name, brought)):
            if field.name in there:
                said = there[field.name]
                values[field.name], sources[field.name] = field.read(field.name, said), Source(kind, said)
                break
        else:
            values[field.name], sources[field.name] = field.default, Source(DEFAULT)
    return values, sources


def _settle_graphs(values: dict[str, Any], sources: dict[str, Source]) -> None:
    """The mode that the other fields leave, where the user gave none; and the split that its words ask for."""
    given = sources["cudagraph_mode"]
    if values["cudagraph_mode"] is None:  # given as None: what the level says
        level = levels.OF_LEVEL[values["level"]]
        values["cudagraph_mode"] = dict(level.values)["cudagraph_mode"]
        sources["cudagraph_mode"] = Source(level.name)
    elif given.by_user and modes.is_breakable(given.said):
        if sources["split"].by_user and values["split"] != "capture":
            raise contradiction(
                "cudagraph_mode with 'breakable'", f"split={values['split']!r}", "it asks for split='capture'"
            )
        values["split"], sources["split"] = "capture", Source("cudagraph_mode")
    if not values["use_cudagraph"] and not sources["cudagraph_mode"].by_user:
        values["cudagraph_mode"], sources["cudagraph_mode"] = CUDAGraphMode.NONE, Source("use_cudagraph")


def _settle_operators(values: dict[str, Any], sources: dict[str, Source]) -> None:
    """Operators between pieces that were given as None: those that the level says."""
    if values["splitting_ops"] is None and sources["splitting_ops"].by_user:
        level = levels.OF_LEVEL[values["level"]]
        values["splitting_ops"] = dict(level.values).get("splitting_ops")
        sources["splitting_ops"] = Source(level.name)


def _settle_sizes(values: dict[str, Any], sources: dict[str, Source]) -> None:
    """Sizes that a level's preset has compiled for give way to a user who wants eager's operators."""
    if not values["use_inductor"] and not sources["compile_sizes"].by_user:
        values["compile_sizes"], sources["compile_sizes"] = None, Source("use_inductor")


def contradiction(one: str, other: str, hint: str) -> UserError:
    """The error for two fields that cannot both be."""
    return UserError("BZ7102", f"{one} contradicts {other}", hints=[hint])


def _check(values: Mapping[str, Any], sources: Mapping[str, Source]) -> None:
    """Refuse fields that contradict each other."""
    mode, level = values["cudagraph_mode"], values["level"]
    piecewise = mode.requires_piecewise_compilation()
    if mode and not values["use_cudagraph"]:
        raise contradiction(f"cudagraph_mode={mode.name}", "use_cudagraph=False", "leave one of them out")
    if piecewise and level < CompilationLevel.PIECEWISE and values["split"] != "capture":
        raise contradiction(
            f"cudagraph_mode={mode.name}",
            f"level={level.value}",
            "pieces need level=3, or split='capture', which breaks the recording of a model that is not compiled",
        )
    if values["cudagraph_copy_inputs"] and not piecewise:
        raise contradiction(
            "cudagraph_copy_inputs=True",
            f"cudagraph_mode={mode.name}",
            "it copies the inputs of pieces: ask for a mode with PIECEWISE",
        )
    _check_compiler(values, level)
    _check_sizes(values)
    if values["memory_budget"] is not None and not mode and sources["memory_budget"].by_user:
        raise contradiction("memory_budget", "cudagraph_mode=NONE", "nothing is recorded: leave it out")


def _check_compiler(values: Mapping[str, Any], level: CompilationLevel) -> None:
    """What only a compiler of pieces takes."""
    if values["inductor_compile_config"] and not values["use_inductor"]:
        raise contradiction(
            "inductor_compile_config", "use_inductor=False", "eager's operators take no options"
        )
    for name in ("compile_sizes", "compile_ranges_endpoints"):
        if not values[name]:
            continue
        if level < CompilationLevel.PIECEWISE:
            raise contradiction(name, f"level={level.value}", "only pieces are compiled for sizes: level=3")
        if not values["use_inductor"]:
            raise contradiction(name, "use_inductor=False", "eager's operators are the same for every size")
    if values["split"] == "schedule" and not values["use_inductor"]:
        raise contradiction("split='schedule'", "use_inductor=False", "eager has no schedule: split='graph'")


def _check_sizes(values: Mapping[str, Any]) -> None:
    """The largest size and the list agree."""
    name, most = "cudagraph_capture_sizes", values["max_cudagraph_capture_size"]
    if values[name] is None and len(values["cuda_graph_sizes"]) > 1:
        name = "cuda_graph_sizes"
    listed = values[name]
    if listed == ():
        raise UserError(
            "BZ7105",
            "cudagraph_capture_sizes is empty",
            hints=["cudagraph_mode='NONE' records nothing; None takes the pattern"],
        )
    if isinstance(listed, tuple) and most is not None and max(listed) != most:
        raise contradiction(
            f"max_cudagraph_capture_size={most}",
            f"{name} with {max(listed)} as the largest",
            "give one of them",
        )


def _without_effect(config: CompilationConfig) -> dict[str, str]:
    """Fields that were given and change nothing, with the reason."""
    idle: dict[str, str] = {}
    if not config.cudagraph_mode:
        recorded = (
            "cudagraph_capture_sizes", "cuda_graph_sizes", "max_cudagraph_capture_size", "pool", "capture", "verify",
        )  # fmt: skip
        idle.update(dict.fromkeys(recorded, "cudagraph_mode is NONE"))
    if config.cudagraph_capture_sizes is not None:
        idle.setdefault("cuda_graph_sizes", "cudagraph_capture_sizes is given")
    if config.level < CompilationLevel.DYNAMO_ONCE:
        words = f"nothing is compiled at level {config.level.value}"
        compiling = "use_inductor", "inductor_compile_config", "cache_dir", "debug_dump_path"
        idle.update(dict.fromkeys(compiling, words))
    if config.level < CompilationLevel.PIECEWISE and config.split != "capture":
        words = f"nothing is compiled in pieces at level {config.level.value}"
        idle.update(dict.fromkeys(("splitting_ops", "split"), words))
    if config.level < CompilationLevel.PIECEWISE:
        idle["cudagraph_copy_inputs"] = (
            f"at level {config.level.value} inputs are copied where calls are staged"
        )
    return {name: why for name, why in idle.items() if config.sources[name].by_user}
