"""How one element in memory becomes a scalar value and back."""

from __future__ import annotations

#: storage types that are not held as they lie -> what reads one, and what it is stored as
_FORMS = {
    "bool": ("{} != 0", "({}) & 1"),
    "bf16": ("bz_bf16_s({})", "bz_tobf16_s({})"),
    "f16": ("bz_half_s({})", "bz_tohalf_s({})"),
}
_AS_IT_LIES = "{}", "{}"


def scalar_load(storage: str, place: str) -> str:
    return _FORMS.get(storage, _AS_IT_LIES)[0].format(place)


def scalar_store(storage: str, text: str) -> str:
    return _FORMS.get(storage, _AS_IT_LIES)[1].format(text)


def assign(storage: str, place: str, text: str, how: str) -> str:
    if how == "+=":
        return f"{place} = {scalar_store(storage, f'{scalar_load(storage, place)} + {text}')};"
    return f"{place} = {scalar_store(storage, text)};"
