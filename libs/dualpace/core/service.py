"""How every service process begins and ends: settings, logging, a stop request, last words."""

import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from dualpace.core.errors import SettingsError
from dualpace.core.logs import configure_logging
from dualpace.core.process import EXIT_SETTINGS, StopRequest, run_service
from dualpace.core.settings import parse_settings, setting

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """What every service can be told."""

    lifeline_fd: int | None = setting(
        "File descriptor of a pipe whose closing ends this process.", default=None
    )
    termination_log: str | None = setting(
        "File that gets the reason of a failure, as Kubernetes' terminationMessagePath.",
        default=None,
    )
    cores: str = setting(
        "CPUs to run on: off, auto (whole cores of those allowed, one of them for threads that do"
        " not compute), or positions among those allowed: of compute threads and, after a slash,"
        " of others, such as 2-7/1.",
        default="off",
    )
    log_level: str = setting(
        "Least severe level that is logged.",
        default="info",
        choices=("debug", "info", "warning", "error"),
    )
    log_json: bool = setting("Log one JSON object a line.", default=False)


S = TypeVar("S", bound=ServiceSettings)


def service_main(service: str, cls: type[S], serve: Callable[[S, StopRequest], None]) -> int:
    """Read settings from this process's flags and variables, serve, and return the exit status.

    `serve` runs until the StopRequest says so. Signals are its own to install.
    """
    prefix = f"DUALPACE_{service.upper().replace('-', '_')}_"
    try:
        settings = parse_settings(
            cls, sys.argv[1:], os.environ, program=f"dualpace-{service}", prefix=prefix
        )
    except SettingsError as error:
        configure_logging(service)
        log.critical("%s stops: %s", service, error)
        return EXIT_SETTINGS
    configure_logging(service, level=settings.log_level, json_lines=settings.log_json)
    stop = StopRequest()
    if settings.lifeline_fd is not None:
        stop.watch_lifeline(settings.lifeline_fd)
    return run_service(service, lambda: serve(settings, stop), settings.termination_log)
