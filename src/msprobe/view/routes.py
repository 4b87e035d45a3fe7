"""The requests of the page. Each names rows and calls by number; none names a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Callable, NamedTuple

from msprobe.dump.errors import DumpError
from msprobe.view.call_details import plain
from msprobe.view.session import Session

SWEEP_SECONDS = 0.4
Query = Mapping[str, str]


class Reply(NamedTuple):
    body: bytes
    kind: str = "application/json"


def answer(session: Session, query: Query) -> Reply:
    living = {"version": session.version, "mapping": session.mapping, "living": session.is_living}
    return _json({**session.contents.answer, **living})


def table(session: Session, query: Query) -> Reply:
    return _json(session.contents.table.head())


def columns(session: Session, query: Query) -> Reply:
    return Reply(session.contents.table.packed(), "application/octet-stream")


def call(session: Session, query: Query) -> Reply:
    contents = session.contents
    return _json(contents.details.of(_number(query, "call", len(contents.table.groups))))


def tensor(session: Session, query: Query) -> Reply:
    return _json(_tensor(session, query).describe())


def sweep(session: Session, query: Query) -> Reply:
    return _json(_tensor(session, query).sweep.advance(SWEEP_SECONDS))


def tensor_slice(session: Session, query: Query) -> Reply:
    axes = _numbers(query, "axes")
    if len(axes) != 2:
        raise DumpError("Give two axes.")
    window = _numbers(query, "window") if query.get("window") else None
    pair = _tensor(session, query)
    return _json(pair.slice(query.get("mode", ""), (axes[0], axes[1]), _numbers(query, "index"), window))


def scales(session: Session, query: Query) -> Reply:
    axes = _numbers(query, "axes")
    if len(axes) != 2:
        raise DumpError("Give two axes.")
    side, form, along = (query.get(key, "") for key in ("side", "format", "along"))
    return _json(_tensor(session, query).scales(side, form, along, (axes[0], axes[1]), _numbers(query, "index")))


def _tensor(session: Session, query: Query) -> Any:
    return session.tensor(_number(query, "row", session.contents.table.count))


def trends(session: Session, query: Query) -> Reply:
    return _json(_watched(session).trends())


def matrix(session: Session, query: Query) -> Reply:
    return _json(_watched(session).matrix(query.get("statistic", ""), _number(query, "rank", 1 << 20)))


def curve(session: Session, query: Query) -> Reply:
    kind, name, statistic = (query.get(key, "") for key in ("kind", "name", "statistic"))
    return _json(_watched(session).curve(kind, name, statistic))


def _watched(session: Session) -> Any:
    watched = session.contents.material.watched
    if watched is None:
        raise DumpError("This is not a watched run.")
    return watched


def pulse(session: Session, query: Query) -> Reply:
    version = session.refresh()
    return _json({"version": version, "living": session.is_living, "trouble": session.trouble})


def match(session: Session, body: Any) -> Reply:
    target, golden = body.get("target"), body.get("golden")
    if not isinstance(target, str) or not (golden is None or isinstance(golden, str)):
        raise DumpError("Give the names of two calls.")
    version = session.match(target, golden)
    return _json({"version": version, "mapping": session.mapping})


def save_mapping(session: Session, body: Any) -> Reply:
    return _json({"path": str(session.save_mapping())})


GET: dict[str, Callable[[Session, Query], Reply]] = {
    "/api/answer": answer,
    "/api/table": table,
    "/api/columns": columns,
    "/api/call": call,
    "/api/tensor": tensor,
    "/api/sweep": sweep,
    "/api/slice": tensor_slice,
    "/api/scales": scales,
    "/api/trends": trends,
    "/api/matrix": matrix,
    "/api/curve": curve,
    "/api/pulse": pulse,
}
POST: dict[str, Callable[[Session, Any], Reply]] = {"/api/match": match, "/api/mapping": save_mapping}


def _json(value: Any) -> Reply:
    return Reply(encode(value))


def encode(value: Any) -> bytes:
    """Encodes JSON; replaces values only if some are NaN or infinite."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    except ValueError:
        return json.dumps(plain(value), separators=(",", ":"), allow_nan=False).encode()


def _number(query: Query, key: str, limit: int) -> int:
    found = query.get(key, "")
    if not found.isascii() or not found.isdigit() or len(found) > 9 or int(found) >= limit:
        raise DumpError(f"{key} must be a number below {limit}.")
    return int(found)


def _numbers(query: Query, key: str) -> list[int]:
    parts = [part for part in query.get(key, "").split(",") if part]
    if len(parts) > 64 or not all(part.isascii() and part.isdigit() and len(part) < 16 for part in parts):
        raise DumpError(f"{key} must be numbers separated by commas.")
    return [int(part) for part in parts]
