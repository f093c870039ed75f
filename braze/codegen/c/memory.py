"""How one element in memory becomes a scalar value and back."""

from __future__ import annotations


def scalar_load(storage: str, place: str) -> str:
    if storage == "bool":
        return f"{place} != 0"
    if storage == "bf16":
        return f"bz_bf16_s({place})"
    if storage == "f16":
        return f"bz_half_s({place})"
    return place


def scalar_store(storage: str, text: str) -> str:
    if storage == "bf16":
        return f"bz_tobf16_s({text})"
    if storage == "f16":
        return f"bz_tohalf_s({text})"
    if storage == "bool":
        return f"({text}) & 1"
    return text


def assign(storage: str, place: str, text: str, how: str) -> str:
    if how == "+=":
        return f"{place} = {scalar_store(storage, f'{scalar_load(storage, place)} + {text}')};"
    return f"{place} = {scalar_store(storage, text)};"
