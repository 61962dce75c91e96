"""Results as they come, in a file beside the profile, so that an interrupted run can go on.

One JSON object a line; the first says what was measured and how. A line that was cut off by the
interruption is measured again; a journal of anything else is not used, and says so.
"""

import dataclasses
import json
import logging
from pathlib import Path
from types import TracebackType

from dualpace.core.errors import ProfileError
from dualpace.profiler.timing import Summary

log = logging.getLogger(__name__)


class Journal:
    """Results by key. A context; the file stays unless `finish` is called."""

    def __init__(self, path: Path, identity: dict[str, object], *, restart: bool = False) -> None:
        """Open, and take over what an earlier run of the same identity measured."""
        self._path = path
        header = json.dumps({"measures": identity}, sort_keys=True)
        self.results = {} if restart else _read(path, header)
        self.resumed = len(self.results)
        try:
            # Written anew, since what follows a torn line would be lost; apart, since this may
            # be interrupted too.
            draft = path.with_name(path.name + ".draft")
            self._file = draft.open("w", encoding="utf-8")
            self._write(header)
            for key, summary in self.results.items():
                self._write(_line(key, summary))
            draft.replace(path)
        except OSError as error:
            raise ProfileError(f"{path}: cannot be written: {error.strerror}") from None

    def add(self, key: str, summary: Summary) -> None:
        """Note a result."""
        self.results[key] = summary
        self._write(_line(key, summary))

    def finish(self) -> None:
        """Remove the file: the profile has everything."""
        self._path.unlink(missing_ok=True)

    def __enter__(self) -> "Journal":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def _write(self, line: str) -> None:
        self._file.write(line + "\n")
        self._file.flush()


def _line(key: str, summary: Summary) -> str:
    return json.dumps({"key": key} | dataclasses.asdict(summary))


def _read(path: Path, header: str) -> dict[str, Summary]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    if not lines or lines[0] != header:
        log.warning("%s: of another measurement; everything is measured anew", path)
        return {}
    results: dict[str, Summary] = {}
    for line in lines[1:]:
        try:
            fields = json.loads(line)
            key = str(fields.pop("key"))
            results[key] = Summary(**fields)
        except (ValueError, TypeError, KeyError, AttributeError):
            break  # torn
    return results
