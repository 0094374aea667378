"""Sends one message to one URL by apprise: reads {url, title, body} as JSON, exits with 0 once it was taken."""

from __future__ import annotations

import json
import sys


def main() -> int:
    given = json.loads(sys.stdin.read())
    import apprise

    with apprise.LogCapture(level=apprise.logging.WARNING, fmt="%(message)s") as log:  # type: ignore[no-untyped-call]
        sender = apprise.Apprise()
        if not sender.add(given["url"]):
            sys.stderr.write("apprise does not know this kind of URL, or a part of it is missing")
            return 2
        if sender.notify(title=given["title"], body=given["body"], body_format=apprise.NotifyFormat.TEXT):
            return 0
        sys.stderr.write(log.getvalue() or "it was not taken")
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
