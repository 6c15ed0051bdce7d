"""Errors of requests, in the form that OpenAI's clients read."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from rlforge.errors import DeploymentError, EngineError

log = logging.getLogger(__name__)

#: What ``explain`` puts into words.
EXPLAINED = (
    *(RequestValidationError, DeploymentError, EngineError, TimeoutError, HTTPException),
    Exception,
)


class RequestError(HTTPException):
    """A request that is refused. param: the field at fault. code: OpenAI's error code."""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        status: int = 400,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, headers)
        self.param, self.code = param, code


def error_body(
    message: str, kind: str, *, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


async def explain(request: Request, error: Exception) -> Response:
    """A failure in the form that OpenAI's clients read."""
    message, param, code = str(error), None, None
    match error:
        case RequestValidationError():
            status = 400
            param, message, code = _invalid(error)
            if isinstance(error.body, bytes):
                # FastAPI reads only JSON, which browsers do not send across sites unasked.
                status, message = 415, "the body must be application/json"
        case RequestError():
            status, message = error.status_code, error.detail
            param, code = error.param, error.code
        # The request is valid, but the service's state does not allow it.
        case DeploymentError():
            status, code = 409, "deployment"
        case EngineError():
            log.error("no answer: %s", error)
            status, code = 503, "engine"
        case TimeoutError():
            status, code = 504, "timeout"
            message = "not answered within serve.request_timeout_s"
        case HTTPException():
            status, message = error.status_code, str(error.detail)
        case _:
            # The traceback is for the log, not for clients.
            log.error("%s %s failed", request.method, request.url.path, exc_info=error)
            status, message = 500, "the service failed; its log says why"
    kind = "invalid_request_error" if status < 500 else "server_error"
    return JSONResponse(
        error_body(message, kind, param=param, code=code),
        status_code=status,
        headers=getattr(error, "headers", None),
    )


def _invalid(error: RequestValidationError) -> tuple[str | None, str, str | None]:
    """The parameter that is wrong, or None for the body; why, in our words; a code."""
    first, *others = error.errors()
    # The place of a JSON error is a position in the body.
    if first["type"] == "json_invalid" and isinstance(first["loc"][-1], int):
        said = f"the body is no JSON: {first['ctx']['error']} at character {first['loc'][1]}"
        return None, said, None
    place = _place(first, error.body)
    # A value that may be of several types has an error for each; one inside of it says more.
    inside = (each for each in others if place and _place(each, error.body).startswith(f"{place}."))
    first = next(inside, first)
    place = _place(first, error.body)
    alike = [first, *(each for each in others if _place(each, error.body) == place)]
    reasons = dict.fromkeys(_reason(each) for each in alike)
    code = "unknown_parameter" if first["type"] == "extra_forbidden" else None
    return place or None, f"{place or 'body'}: {', or '.join(reasons)}", code


def _place(problem: Mapping[str, Any], body: Any) -> str:
    parts, at = [], body
    for part in problem["loc"][1:]:
        try:
            # pydantic's places also name types, which are no keys of the body.
            at = at[part]
        except (LookupError, TypeError):
            if problem["type"] != "missing" or part != problem["loc"][-1]:
                continue
        parts.append(str(part))
    return ".".join(parts)


def _reason(problem: Mapping[str, Any]) -> str:
    match problem["type"]:
        case "missing":
            return "is missing"
        case "extra_forbidden":
            return "unknown parameter"
        case "value_error" | "json_invalid":
            return str(problem["ctx"]["error"])
        case "json_type":
            return "must be a valid string"
        case "model_type" | "dict_type" | "model_attributes_type":
            # pydantic would name its class, which clients do not know.
            return "must be an object"
    # pydantic writes "Input should be …", and here the parameter's name stands in front.
    return re.sub(r"^\w+ should ", "must ", problem["msg"])
