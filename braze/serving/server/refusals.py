"""What is refused, in the protocol's words: a message that says what to do, a kind, the field at fault, a code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from braze.options import near
from braze.serving.server.answers import TimedOut
from braze.serving.server.protocol import ChatRequest, CompletionRequest, error_body
from braze.support.errors import BrazeError, UserError

#: what refusals mean in HTTP; others are bad requests
_STATUS = {"BZ7407": 429, "BZ7501": 503, "BZ7506": 404}
#: errors of one request that are told
_TOLD = 5
#: fields of a body, by its address
_FIELDS: dict[str, type[BaseModel]] = {
    "/v1/completions": CompletionRequest,
    "/v1/chat/completions": ChatRequest,
}


def add_refusals(app: FastAPI) -> None:
    """Have an application answer errors as the protocol does."""

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        return answered(*_invalid(request.url.path, error.errors()))

    @app.exception_handler(HTTPException)
    async def no_answer(request: Request, error: HTTPException) -> JSONResponse:
        told = _no_answer(app, request, error)
        return answered(told, status=error.status_code, headers=error.headers)

    @app.exception_handler(BrazeError)
    async def refused(request: Request, error: BrazeError) -> JSONResponse:
        return answered(error)

    @app.exception_handler(TimedOut)
    async def late(request: Request, error: TimedOut) -> JSONResponse:
        return JSONResponse(error_body(str(error), "timeout"), 504)

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse(error_body(f"{type(error).__name__}: {error}", "server_error"), 500)


def answered(
    error: BrazeError,
    param: str | None = None,
    status: int = 0,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """The answer to what is refused by ``error``; ``param``: the field at fault."""
    status = status or _STATUS.get(error.code, 400 if isinstance(error, UserError) else 500)
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return JSONResponse(error_body(str(error), kind, error.code, param), status, headers)


def too_long(most: int) -> UserError:
    """Of a body that is."""
    return UserError("BZ7511", f"a request has at most {most} bytes", hints=("send less at once",))


def _invalid(path: str, errors: Sequence[Any]) -> tuple[UserError, str | None]:
    """What is wrong with a body, and its first field at fault."""
    if broken := _no_object(errors[0]):
        return UserError("BZ7511", broken), None
    unknown = [_field(e["loc"]) for e in errors if e["type"] == "extra_forbidden"]
    if unknown:
        return _unknown(path, unknown), unknown[0].partition(".")[0]
    found = [(_field(e["loc"]), e["msg"].removeprefix("Value error, ")) for e in errors]
    told = "; ".join(dict.fromkeys(f"{field}: {why}" for field, why in found[:_TOLD]))
    return UserError("BZ7511", told), found[0][0].partition(".")[0]


def _unknown(path: str, names: Sequence[str]) -> UserError:
    """Fields that this server does not know, and what they may have been meant to be."""
    known = _FIELDS[path].model_fields if path in _FIELDS else ()
    hints = [f"{name}: {near(name, known)}" for name in names[:_TOLD] if "." not in name]
    return UserError(
        "BZ7505", f"not served here: {', '.join(names[:_TOLD])}", hints=hints or ["leave it out"]
    )


def _field(place: Sequence[int | str]) -> str:
    """Where a body is at fault: names and places in it, without the checks that pydantic names beside them."""
    return ".".join(str(part) for part in place[1:] if isinstance(part, int) or "[" not in part) or "body"


def _no_object(first: Any) -> str:
    """What is wrong with a body that is no JSON object, or is not said to be one; empty where it is one."""
    if first["type"] == "json_invalid":
        return f"the body is not JSON: {first['ctx']['error']} at character {first['loc'][1]}"
    if first["loc"] == ("body",) and first["type"] != "value_error":
        return "the body is to be a JSON object, sent with content-type: application/json"
    return ""


def _no_answer(app: FastAPI, request: Request, error: HTTPException) -> UserError:
    """Of what no route answers: another address or method, or a body that cannot be read."""
    what = f"{request.method} {request.url.path}"
    routes = [route for route in app.routes if isinstance(route, APIRoute)]
    if error.status_code == 404:
        there = ", ".join(
            f"{'/'.join(sorted(r.methods or ()))} {r.path.replace(':path', '')}" for r in routes
        )
        return UserError("BZ7510", f"there is nothing at {what}", hints=(f"there are {there}",))
    if error.status_code == 405:
        takes = (error.headers or {}).get("Allow", "another method")
        return UserError("BZ7510", f"{what} is not served", hints=(f"{request.url.path} takes {takes}",))
    return UserError("BZ7511", str(error.detail))
