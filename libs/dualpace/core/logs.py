"""Logging set-up.

One line a record, text for people or JSON for collectors. Never prompts, never keys.
"""

import json
import logging
import sys
import time

from dualpace.core.trace_context import current_trace

_RESERVED = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """One JSON object a line; `extra` fields become keys."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON."""
        fields: dict[str, object] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "service": self._service,
            "logger": record.name,
            "message": record.getMessage(),
        }
        trace = current_trace.get()
        if trace is not None:
            fields.update(trace.fields())
        fields.update({k: v for k, v in vars(record).items() if k not in _RESERVED})
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str)


def configure_logging(service: str, *, level: str = "info", json_lines: bool = False) -> None:
    """Send this process's log to stderr. Call once, from `__main__`."""
    handler = logging.StreamHandler(sys.stderr)
    if json_lines:
        handler.setFormatter(JsonFormatter(service))
    else:
        handler.setFormatter(
            logging.Formatter(f"%(asctime)s {service} %(levelname)s %(message)s", "%H:%M:%S")
        )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)  # libraries: what is wrong, and nothing else
    logging.getLogger("dualpace").setLevel(level.upper())
