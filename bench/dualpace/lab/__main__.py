"""`dualpace lab`: run one simulation, or compare systems."""

import sys

from dualpace.core.errors import DualPaceError
from dualpace.lab.command import main

if __name__ == "__main__":
    try:
        sys.exit(main())
    except DualPaceError as error:
        print(f"dualpace lab: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
