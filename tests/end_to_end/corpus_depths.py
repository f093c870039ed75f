"""What lies deep in containers from outside, and is looked into by C code: text, comparisons, what goes over it."""

from __future__ import annotations

import array
import collections
import copy
import functools
import heapq
import io
import json
import operator
import re
import struct

import torch

from tests.end_to_end.conformance import scenario

X = torch.ones(2)


@scenario
def text_of_what_lies_deep(c):
    deep = {"a": {"b": {"c": {"d": {"e": {"f": [1, {"g": 2}]}}}}}}
    rows = [[[[[[{"k": [1]}]]]]]]

    def texts(x, given):
        s = io.StringIO()
        print(rows, given, file=s)
        return (
            x + 1,
            json.dumps(deep),
            repr(rows),
            f"{given}",
            "%s %s" % (rows, deep),
            list(map(str, rows)),
            s.getvalue(),
        )

    f = c(texts)
    yield f(X, deep)
    deep["a"]["b"]["c"]["d"]["e"]["f"][1]["g"] = rows[0][0][0][0][0][0]["k"][0] = 5
    yield f(X, deep)
    deep["a"]["b"]["c"]["d"]["e"]["more"] = {"z": 3}
    yield f(X, deep)


@scenario
def copies_of_what_lies_deep(c):
    deep = [[[[[[{"k": {"l": {"m": [1]}}}]]]]]]
    f = c(lambda x: (x + 1, copy.deepcopy(deep), deep == [[[[[[{"k": {"l": {"m": [2]}}}]]]]]]))
    yield f(X)
    deep[0][0][0][0][0][0]["k"]["l"]["m"][0] = 2
    yield f(X)


@scenario
def text_of_a_number_that_lies_deep(c):
    def texts(x, n):
        text = f"n={n}"
        return x * n, json.dumps([[[[[[[text]]]]]]]), str({1: {2: {3: {4: {5: {6: [text]}}}}}})

    f = c(texts)
    for n in (2, 3, 4):
        yield f(X, n)


@scenario
def opaque_objects_that_lie_deep(c):
    class Row(list):
        pass

    held = bytearray(b"abc0")
    other = bytearray(b"abc1")
    rows, row, queue = [[held]], Row([Row([held])]), collections.deque([[held]])
    f = c(
        lambda x: (
            x + 1,
            str(rows),
            repr({"a": [held]}),
            f"{row} {queue}",
            "{k}".format(k=((held,),)),
            str([held] * 70),
        )
    )
    g = c(
        lambda x: (
            x + 1,
            rows == [[other]],
            row.count([other]),
            [other] in queue,
            ((held,),) < ((other,),),
            {1: held} == {1: other},
        )
    )
    h = c(
        lambda x: (
            x + 1,
            max(iter([[held], [other]])) == [held],
            heapq.nlargest(1, [[held], [other]]) == [[held]],
        )
    )
    i = c(
        lambda x: (
            x + 1,
            functools.reduce(operator.eq, [rows, [[other]]]),
            sorted([[held], [other]])[0] == [held],
        )
    )
    for last in b"012":
        held[3] = last
        yield f(X), g(X), h(X), i(X)


@scenario
def opaque_objects_that_functions_read(c):
    held, numbers = bytearray(b"abc0"), array.array("i", [1, 2])
    f = c(
        lambda x: (
            x + 1,
            struct.unpack("2i", numbers),
            struct.pack("4s", held),
            re.sub(b"b", b"x", held),
            re.match(b"abc1", held) is None,
        )
    )
    for last in b"012":
        held[3] = numbers[0] = last
        yield f(X)


@scenario
def opaque_objects_that_functions_of_iterators_read(c):
    held, rows = bytearray(b"abc0"), [1]
    f = c(
        lambda x: (
            x + 1,
            list(map(str, [[held]])),
            next(map(repr, [{"a": [held]}])),
            "".join(map(str, [(held,)])),
        )
    )
    g = c(
        lambda x: (
            x + 1,
            list(zip(map(str, [[held]]), rows)),
            list(filter(functools.partial(operator.eq, [b"abc1"]), [[held]])),
        )
    )
    for last in b"012":
        held[3] = last
        yield f(X), g(X)
