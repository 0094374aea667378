"""A dashboard that obeys: reads commands from a pipe, draws on its terminal, answers on stderr."""

from __future__ import annotations

import json
import sys

from rich.console import Console

from orchestrator.display.dashboard import Dashboard
from tests.builders import a_view


def main() -> None:
    dashboard = Dashboard(Console())
    for line in sys.stdin:
        command = json.loads(line)
        match command.pop("do"):
            case "update":
                is_read = command.pop("is_read", True)
                dashboard.update(a_view(**command))
                # A reader starved by other processes gets its frame a little later; the loop would come by again.
                while is_read and dashboard.is_open and not dashboard.canvas.flush():
                    pass
            case "say":
                dashboard.say(command["text"])
            case "close":
                dashboard.close(command["text"])
            case "raise":
                raise SystemExit(3)
        sys.stderr.write(f"{'open' if dashboard.is_open else 'closed'}\n")
        sys.stderr.flush()


if __name__ == "__main__":
    main()
