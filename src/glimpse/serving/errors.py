"""What is wrong with a request, in OpenAI's form."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError


class RequestError(ValueError):
    """A request that cannot be served; ``status`` is its HTTP status."""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        status: int = 400,
        kind: str = "invalid_request_error",
    ) -> None:
        super().__init__(message)
        self.param, self.code, self.status, self.kind = param, code, status, kind

    def as_dict(self) -> dict[str, Any]:
        """The ``{"error": ...}`` object of a response's body."""
        return {
            "error": {
                "message": str(self),
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }

    @classmethod
    def of_validation(cls, error: ValidationError, valid_fields: list[str]) -> RequestError:
        """The first thing that a body's schema refuses."""
        first = error.errors(include_url=False, include_input=False)[0]
        # Members of a union stand in the location besides the fields and indices of the body.
        location = [part for i, part in enumerate(first["loc"]) if i == 0 or isinstance(part, int)]
        param = ".".join(map(str, location)) or None
        if first["type"] == "extra_forbidden" and len(first["loc"]) == 1:
            message = f"unsupported field {param!r}; valid: {', '.join(valid_fields)}"
            return cls(message, param=param, code="unsupported_parameter")
        if first["type"] == "missing":
            return cls(f"{param}: this field is required", param=param)
        return cls(f"{param or 'body'}: {first['msg']}", param=param)

    @classmethod
    def of_value(cls, error: ValueError) -> RequestError:
        """An error of the library; its message begins with ``name=value`` where there is one."""
        if isinstance(error, RequestError):
            return error
        name, equals, _ = str(error).partition("=")
        is_name = bool(equals) and name.isidentifier()
        return cls(str(error), param=name if is_name else None)
