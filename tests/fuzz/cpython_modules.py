"""Which of CPython's own tests are run, and which may differ when they are compiled, each with its reason."""

from __future__ import annotations

MODULES = tuple(
    f"test.test_{name}"
    for name in """
    abc abstract_numbers array augassign baseexception bigmem binop bisect bool builtin bytes call class cmath collections
    compare complex configparser contains context contextlib copy copyreg csv dataclasses decimal decorators defaultdict deque
    descr dict dictcomps dictviews difflib dynamic dynamicclassattribute enum enumerate except_star exception_group
    exception_hierarchy exception_variations exceptions extcall fileinput float fnmatch format fractions fstring funcattrs
    functools generator_stop generators genericalias genericclass genexps global grammar graphlib hash heapq index int
    int_literal isinstance iter iterlen itertools json keyword keywordonlyarg list listcomps long memoryview
    metaclass named_expressions numeric_tower operator ordered_dict patma pickle pkgutil positional_only_arg pow pprint
    print property queue raise random range reprlib richcmp sched scope set setcomps shelve slice sort statistics string
    string_literals struct structseq subclassinit super textwrap threading_local tuple types
    typechecks unary unicode unpack unpack_ex userdict userlist userstring weakref weakset with yield_from
    """.split()
)

SUGGESTIONS = "Python finds names like the missing one in the variables of the traceback's frames, which are not the frame's own"
SAME_TUPLE = "a function in C hands back the very tuple that it was called with; its call breaks the graph, and is made with another"
SMALL_INTEGER = (
    "how many references there are to the number 10 tells of all that holds one, what is compiled too"
)
TYPES_OF_ARRAYS = (
    "Byte", "Double", "Float", "Int", "LongLong", "Long", "Short", "Unicode", "UnsignedByte", "UnsignedInt", "UnsignedLong",
    "UnsignedLongLong", "UnsignedShort",
)  # fmt: skip
TRACED = "a function of sys.settrace sees the lines of frames, which compiled calls have none of"
PATTERNS = (
    "default_capture default_wildcard no_default only_default_capture only_default_wildcard unreachable_code"
)

#: (minor versions, test without "test.") -> why it may differ; an entry that does not differ is a complaint, too
MAY_DIFFER: dict[tuple[str, str], str] = {
    ("11", "test_exceptions.NameErrorTests.test_name_error_suggestions"): SUGGESTIONS,
    ("11", "test_exceptions.NameErrorTests.test_name_error_suggestions_from_globals"): SUGGESTIONS,
    ("11", "test_call.TestPEP590.test_vectorcall_override"): SAME_TUPLE,
    **{("11", f"test_array.{name}Test.test_bug_782369"): SMALL_INTEGER for name in TYPES_OF_ARRAYS},
    ("13", "test_call.TestPEP590.test_vectorcall_override"): SAME_TUPLE,
    **{
        (f"{v}", f"test_patma.TestTracing.test_{name}"): TRACED for v in (11, 13) for name in PATTERNS.split()
    },
}
