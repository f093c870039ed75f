"""Every stable code, for ``braze explain BZ1012`` and docs/codes.md."""

from __future__ import annotations

from braze.support.record import record


@record
class Code:
    """What a code means: a title, what causes it, and what to do."""

    title: str
    cause: str
    remedy: str


CODES: dict[str, Code] = {
    # -- BZ00xx: calls of the public face
    "BZ0001": Code("unknown backend", "backend= names no registered backend.", "Use a name of braze.list_backends()."),
    "BZ0002": Code("unknown mode", "mode= is not one of torch.compile's.", "Use one of default, reduce-overhead, max-autotune."),
    "BZ0003": Code("unknown option", "options= holds a name braze does not know.", "See braze.options.Options."),
    "BZ0004": Code("unknown log subject", "BRAZE_LOGS holds an unknown name.", "BRAZE_LOGS=help lists the names."),
    # -- BZ10xx: graph breaks
    # -- BZ11xx: guards and recompiles
    # -- BZ20xx: graph and ahead-of-time stages
    # -- BZ30xx: lowering
    # -- BZ40xx: scheduling
    # -- BZ50xx: code generation and builds
    # -- BZ60xx: run time and cache
    "BZ6001": Code(
        "pure-Python core",
        "The C extension could not be built or imported, or BRAZE_PURE is set.",
        "Install a C compiler and reinstall braze; unset BRAZE_PURE.",
    ),
    "BZ6002": Code(
        "no frame hook",
        "Graph breaks inside calls need the C extension, which is not built.",
        "Install a C compiler and reinstall braze.",
    ),
    # -- BZ90xx: broken invariants of braze itself
}
