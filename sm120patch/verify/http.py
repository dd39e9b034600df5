"""Small bounded GET requests, for readiness and `/server_info`. Talks HTTP only."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping

_LIMIT = 8 << 20


def get(url: str, timeout: float, api_key: str | None = None) -> tuple[int, bytes]:
    """Status and body of a GET; status 0 when there was no HTTP answer at all.

    `timeout` bounds the whole exchange, also against a server that drips bytes. Proxies of the
    environment are not used: the server under test is on this host.
    """
    request = urllib.request.Request(url)
    if api_key:
        request.add_header("Authorization", f"Bearer {api_key}")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + timeout
    try:
        with opener.open(request, timeout=timeout) as reply:
            body = b""
            while chunk := reply.read1(1 << 16):
                body += chunk
                if len(body) > _LIMIT or time.monotonic() > deadline:
                    return 0, b""
            return int(reply.status), body
    except urllib.error.HTTPError as error:
        error.close()
        return error.code, b""
    except (OSError, http.client.HTTPException, ValueError):
        return 0, b""


def get_object(url: str, timeout: float, api_key: str | None = None) -> Mapping[str, object] | None:
    """JSON object behind a URL, or None for anything else."""
    status, body = get(url, timeout, api_key)
    if status != 200:
        return None
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
