"""Models of the catalogue that do not come out as one graph, and why.

A model listed here that does become one graph fails its test until its line is removed.
"""

from __future__ import annotations

EXCEPTIONS: dict[str, str] = {
    "longformer": "an if asks whether any token attends globally, which only the data tell",
    "led": "an if asks whether any token attends globally, which only the data tell",
    "switch": "a loop runs over the experts that got tokens: how many, only the data tell",
    "nllb-moe": "a loop runs over the experts that got tokens: how many, only the data tell",
}

#: model -> the first version of transformers in which it can be one graph, and why not before
SINCE: dict[str, tuple[str, str]] = {
    "mistral3": (
        "5.23",
        "until 5.23 a mask of pictures is written in a loop over their sizes, which only the data tell",
    ),
    "funnel": ("5.23", "numbers for arange were read out of tensors before 5.23"),
    "aria-text": ("5.23", "until 5.23 experts get slices whose ends only the data tell"),
    "autoformer": ("5.23", "until 5.23 its own code fails when it is told that a compiler runs it"),
}
