"""Bugs that are none: edits after which nothing that a caller can see is different, each with the reason.

They are set apart before bugs are chosen, so that another takes the place of each.
"""

from __future__ import annotations

from collections.abc import Mapping

#: id of a mutant -> why nobody can notice it
EQUIVALENT: Mapping[str, str] = {
    "d8e84e4bc66b": "_bordered: a border of no width is a mask that is true everywhere around the same loads",
    "94aaa7b3ec06": "reduce: several outputs are of the type of x, of which it was asked just before, or int64",
    "9804c4afbac5": "_is_depthwise: the size is known, so that the other number is taken for 0 alone; 0 and 1 are no large window",
    "05124f7e0742": "_fixed_steps: _movable has let pass only steps that write buffers of known size",
    "7c639999d7b9": "_covers_domain: _same_elements has just seen that all stores of the buffer have one index",
    "77dda4ea27ca": "_squares: `a < w ? a : w` and `a <= w ? a : w` are the same number",
    "a635008a8439": "_rows_of_a_task: tasks of fewer rows; each row is computed as before",
    "51646ddb7885": "_storen: lanes are stored by the loop instead of one instruction",
    "1e7e48dc7ff6": "_copies: how many accumulators stand side by side, by cost; each number of them is right",
    "1c6d6f65c4aa": "_copies: as before; passes without folds do two vectors in turn, which have nothing to do with each other",
    "1f1375db7fb8": "_chain: a sum is made of blocks from half the length on, which is no less exact",
    "0ad4bc29187e": "_SplitRows: which axis of the row is dealt out in parts, by cost; the parts of any cover the row once",
    "9429bda66428": "read: code that names a cell belongs to functions that have a closure; else both end in a miss",
    "618d23ccf593": "_with_grad_mode: gradients are turned on where they are on",
    "46022a45a969": "_cast_constant: the least number of a type and one more than its greatest wrap to the same",
    "6f6a48f91ede": "pow_by_number: a power of 64 is ATen's, as those above it are; both are the same whole number",
    "8cf6deb1e48b": "_quads: four numbers drawn at once are those that are drawn one by one",
    "7d007d2fffce": "fill_arguments: how deep texts are looked for, of which what is deeper is written in any case",
    "5451f5d7b22c": "fill_diagonal: ATen fills the diagonal of a high matrix to the same numbers",
    "04cb125b7d16": "_rule_many: which tile, by cost",
    "56ee15734f33": "_few: which tile is tried, by cost",
    "cedde9944529": "_of_long_rows: which tiling is tried, by cost",
    "58cd8629e762": "reshaped_strides: strides of a window without elements are nobody's; an output gets those of eager",
    "feacae3ae881": "_same_layout: what has no elements is copied into what has none, laid out alike",
    "272b923d3a86": "_rule_many: which tile, by cost",
    "0850c1a40767": "_rule_many: which tile, by cost",
    "ec1f267c631e": "_many: how many loads of a tile that is tried are under way, by cost",
    "e5df091c82d9": "_cut: how far down a number of parts is looked for that are alike, by cost; parts of any number are right",
    "6c2b00d9760b": "_replaced: what an element is taken to cost, which decides where it is computed",
    "5325edfb3f17": "in_order: loops store at sums of their axes by strides, so that each axis has a coefficient; the other number is for the types",
    "4a3db1b92dd3": "stored: a store at computed places stands in no block with what reads its buffer; loads at such places take nothing that is known",
    "010442422bfd": "_Gemm: where both strides are 1 one of the sizes is, so that either order of reading meets the same numbers; else one stride is 1",
    "c82b991c3d46": "_range: where whole vectors fill what is walked, either condition holds up to the last of them",
    "dab3d4ce9206": "Accumulator.open: names a state for the ends of rows, which nobody reads: the compiler drops it",
    "2632ca5d12b4": "_storen: lanes are stored by the loop instead of one instruction",
    "6f1e5538aa54": "generate_host: a graph of parts is recorded and packs no weights; else one writer has them, beside one of a fixed part at most, which was asked for before",
    "c8b8f3caf703": "drops_between: where nothing is dropped, layer by layer is what the stack does: the same operators but for views",
    "82956c585c55": "_flat_numbers.inner: whether a number is inside and whether those before are, in either order",
    "f468feef2e4d": "_is_small: whether a table of exactly so many rows is summed by the operator or by loops, by cost",
    "414f1c77757e": "work_of: what operations are taken to cost, which decides how many threads run",
    "63bf173cb015": "_rows_of_a_task: a task gets one tile of rows instead of several, each computed alike",
    "9ce744433c62": "by_rule: which tiles a product of few rows is cut in, by cost",
    "d7e7ca437327": "_same_layout: what has no elements is copied into what has none",
    "bc175188295a": "constant_pad: whether what is dear is stored before it is padded, by cost",
    "ccbd53a78b76": "convolution_backward: a sum that nobody reads goes out of the program",
    "95bc8137ebcd": "carried: no operator takes one of its numbers as it comes and another not",
    "78da3292169d": "samples: how many elements a sample has, whose keys alone are read",
    "4a63cd8592f5": "_body: of two numbers that are one either is the smaller",
    "a399b8c3e4bb": "no_place: the version of an interpreter has more parts than the two it is compared with",
}
