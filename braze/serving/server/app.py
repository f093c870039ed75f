"""The server's routes: completions, chat, models, health, metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException

from braze.serving.engine.engine import Engine
from braze.serving.engine.ranges import SECONDS, refuse_others, whole
from braze.serving.policy.sizes import write_traffic
from braze.serving.server.answers import Asked, Generation, collected, streamed
from braze.serving.server.logprobs import Told
from braze.serving.server.loop import EngineLoop
from braze.serving.server.metrics import Metrics
from braze.serving.server.protocol import Answer, ChatRequest, CompletionRequest
from braze.serving.server.refusals import add_refusals, answered, too_long
from braze.serving.server.tokens import TextTokens
from braze.support.errors import UserError
from braze.support.record import record

#: characters that are split into tokens in less than a millisecond
_SHORT = 4096
#: log-probabilities of echoed prompts in one answer: this many are 20 MB, written in half a second in which nothing else goes on
_LIKELIHOODS = 1 << 20
#: digits of a length that is not absurd
_DIGITS = 20


@record
class ServerOptions:
    """``name``: of the model. ``request_seconds``: a request's at most. ``shutdown_seconds``: that requests have to end in.
    ``most_requests``: HTTP requests at once; more are refused. ``most_prompts``: prompts of one request, its copies counted; ``most_bytes``: of one request.
    ``traffic``: a file to which the steps' sizes are written at the end, for ``sizes="traffic:<file>"``; none where it is empty."""

    name: str = "model"
    request_seconds: float = 600.0
    shutdown_seconds: float = 30.0
    most_requests: int = 512
    most_prompts: int = 64
    most_bytes: int = 16 << 20
    traffic: str = ""


_RANGES = {
    "request_seconds": SECONDS,
    "shutdown_seconds": SECONDS,
    "most_requests": whole(1),
    "most_prompts": whole(1),
    "most_bytes": whole(1),
}


@dataclass
class Server:
    """What the routes share."""

    loop: EngineLoop
    tokens: TextTokens
    options: ServerOptions
    metrics: Metrics
    open: int = 0
    began: int = field(default_factory=lambda: int(time.time()))


def make_app(engine: Engine, tokens: TextTokens, options: ServerOptions | None = None) -> FastAPI:
    """An ASGI application around an engine, whose thread begins and ends with it."""
    metrics, options = Metrics(), options or ServerOptions()
    refuse_others("BZ7411", "limits of a server that mean nothing", options, _RANGES)
    server = Server(EngineLoop(engine, metrics.watch), tokens, options, metrics)
    metrics.follow(server.loop)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        server.loop.start()
        yield
        await asyncio.to_thread(server.loop.close, server.options.shutdown_seconds)
        if server.options.traffic:
            write_traffic(engine.runner.histogram, server.options.traffic)

    app = FastAPI(title="braze", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.server = server
    app.add_middleware(_Bounded, most=server.options.most_bytes)
    add_refusals(app)
    _add_generation(app, server)
    _add_facts(app, server)
    return app


def _add_generation(app: FastAPI, server: Server) -> None:
    @app.post("/v1/completions")
    async def completions(body: CompletionRequest, request: Request) -> Response:
        given = body.prompts()
        _admit(server, body, len(given))
        prompts = [await _encoded(server, p) if isinstance(p, str) else p for p in given]
        # tokens become text when the engine has taken them: they may be any numbers, and any number of them
        echoed = given if body.echo else None
        asked = Asked(prompts, body.answers, body.copies, body.stops(), echoed, body.max_tokens == 0)
        return await _generate(server, request, body, asked, chat=False)

    @app.post("/v1/chat/completions")
    async def chat(body: ChatRequest, request: Request) -> Response:
        _admit(server, body, 1)
        messages = [message.plain() for message in body.messages]
        tools = body.callable
        if tools and not server.tokens.calls:
            raise UserError(
                "BZ7505",
                "not served here: tools",
                why="the model's chat template has no calls as <tool_call>{...}</tool_call>, or these marks are special tokens",
                hints=("leave them out",),
            )
        prompt = await asyncio.to_thread(server.tokens.chat, messages, tools)
        calls = body.parallel_tool_calls is not False if tools else None
        asked = Asked([prompt], body.answers, body.copies, body.stops(), calls=calls)
        return await _generate(server, request, body, asked, chat=True)


async def _encoded(server: Server, text: str) -> list[int]:
    """The tokens of a text; other requests go on while a long one is split."""
    if len(text) < _SHORT:
        return server.tokens.encode(text)
    return await asyncio.to_thread(server.tokens.encode, text)


def _add_facts(app: FastAPI, server: Server) -> None:
    model = {"id": server.options.name, "object": "model", "created": server.began, "owned_by": "braze"}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [model]}

    @app.get("/v1/models/{name:path}")
    async def one_model(name: str) -> dict[str, Any]:
        _known(server, name)
        return model

    @app.get("/health")
    async def health() -> Response:
        return Response(status_code=200 if server.loop.healthy else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(server.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


class _Bounded:
    """An application whose requests have so many bytes at most; more are refused (413) before they are read."""

    def __init__(self, app: Any, most: int) -> None:
        self.app, self.most = app, most

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        told = next((value for name, value in scope.get("headers", ()) if name == b"content-length"), b"0")
        if not told.isdigit() or int(told[:_DIGITS]) > self.most:
            await answered(too_long(self.most), status=413)(scope, receive, send)
            return
        read = 0

        async def bounded() -> Any:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self.most:
                raise HTTPException(413, too_long(self.most).what)
            return message

        await self.app(scope, bounded, send)


async def _generate(
    server: Server, request: Request, body: CompletionRequest | ChatRequest, asked: Asked, chat: bool
) -> Response:
    """Run a request's prompts, and answer at once or in a stream."""
    params = body.params(_room(server, asked.prompts))
    if params.prompt_logprobs is not None:
        count = asked.copies * sum(map(len, asked.prompts)) * (1 + params.prompt_logprobs)
        if count > _LIKELIHOODS:
            raise UserError(
                "BZ7505",
                f"{count} log-probabilities of prompts and their copies: {_LIKELIHOODS} are told at most",
            )
    options = body.stream_options
    answer = Answer(body.model or server.options.name, chat, options is not None and options.include_usage)
    told = Told(server.tokens, chat, body.likeliest)
    generation = Generation(server.loop, server.tokens, asked, params, told, server.options.request_seconds)
    server.open += 1
    async with AsyncExitStack() as stack:
        stack.callback(_done, server)
        await stack.enter_async_context(generation)
        # what the engine refuses has its status in a stream, too
        await generation.taken()
        if not body.stream:
            found = await _unless_gone(request, collected(generation, answer))
            return JSONResponse(found) if found is not None else Response(status_code=499)
        return _Events(streamed(generation, answer), stack.pop_all())


def _admit(server: Server, body: CompletionRequest | ChatRequest, prompts: int) -> None:
    """Refuse what is too much. Raises BZ7407, BZ7505, BZ7506."""
    options = server.options
    if body.model:
        _known(server, body.model)
    if server.open >= options.most_requests:
        raise UserError("BZ7407", f"{server.open} requests are being served, as many as may be")
    if not 0 < prompts * body.copies <= options.most_prompts:
        raise UserError(
            "BZ7505", f"{prompts} prompts, {body.copies} answers each: 1 to {options.most_prompts} are served"
        )


def _known(server: Server, name: str) -> None:
    """Refuse another model than the one that is served."""
    if name != server.options.name:
        raise UserError(
            "BZ7506", f"there is no model {name!r} here", hints=(f"it is called {server.options.name!r}",)
        )


def _room(server: Server, prompts: Sequence[Sequence[int]]) -> int:
    """How many tokens there may be after the longest prompt."""
    longest = max(map(len, prompts))
    return max(1, server.loop.engine.runner.limits.max_model_len - longest)


def _done(server: Server) -> None:
    server.open -= 1


class _Events(StreamingResponse):
    """Server-sent events; what was entered for them is left when they end, the client is gone, or they never begin."""

    def __init__(self, events: AsyncIterator[str], stack: AsyncExitStack) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self._stack = stack

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async with self._stack:
            await super().__call__(scope, receive, send)


async def _unless_gone(request: Request, answer: Any) -> dict[str, Any] | None:
    """The answer, or None where the client goes away first."""
    work = asyncio.ensure_future(answer)
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        return await work if work.done() else None
    finally:
        for task in (work, gone):
            task.cancel()


async def _gone(request: Request) -> None:
    """Ends when the client has gone away; the body has been read, so that only that can be received."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
