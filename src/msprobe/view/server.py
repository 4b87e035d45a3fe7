"""The server: for this machine and this browser only. It reads only the paths of the command line.

The printed address has a token that is exchanged for a cookie, in any browser, as long as the server runs. Requests
with another Host (a name that an attacker points at 127.0.0.1) or another Origin (a page of another site) are refused.
The page is one document; no file can be requested.
"""

from __future__ import annotations

import json
import secrets
import threading
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Optional
from urllib.parse import parse_qsl, urlsplit

from msprobe.dump.errors import DumpError
from msprobe.view import page_files, routes
from msprobe.view.session import Session

HOST = "127.0.0.1"
MOST_BODY = 4 << 20
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
NO_TOKEN = "Open the address that `msprobe view` printed: it has the token of this server."


class Refused(Exception):
    """A refused request, with its HTTP status."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class ViewServer(ThreadingHTTPServer):
    """Serves one session."""

    daemon_threads = True

    def __init__(self, session: Session, port: int = 0) -> None:
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            advice = "choose another --port, or leave it out"
            raise DumpError(f"Port {port} cannot be used: {error.strerror or error}; {advice}.") from None
        self.session = session
        self.port = int(self.server_address[1])
        self._token = secrets.token_urlsafe(24)
        self._once: Optional[str] = secrets.token_urlsafe(24)
        self.address = self._with(self._token)
        self.address_once = self._with(self._once)
        self.cookie = f"msprobe_{self.port}"
        self.secret = secrets.token_urlsafe(24)
        self.policy = f"{page_files.page().policy}; form-action 'none'; frame-ancestors 'none'"
        self._lock = threading.Lock()

    def _with(self, token: str) -> str:
        return f"http://{HOST}:{self.port}/?token={token}"

    def exchange(self, token: str) -> bool:
        """Whether this token opens the page. That of `address_once` does so once: every user of the machine can read
        the command line with which a browser is started."""
        if secrets.compare_digest(token.encode(), self._token.encode()):
            return True
        with self._lock:
            if self._once is None or not secrets.compare_digest(token.encode(), self._once.encode()):
                return False
            self._once = None
            return True

    @property
    def hosts(self) -> tuple[str, str]:
        return f"{HOST}:{self.port}", f"localhost:{self.port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "msprobe"
    sys_version = ""
    timeout = 60
    wbufsize = -1  # a response is sent at once, not its headers first
    disable_nagle_algorithm = True
    server: ViewServer

    def do_GET(self) -> None:
        self._respond(self._get)

    def do_POST(self) -> None:
        self._respond(self._post)

    def log_message(self, format: str, *args: Any) -> None:
        """Does not print requests to the terminal."""

    def _respond(self, work: Any) -> None:
        try:
            self._check_origin()
            work()
        except Refused as refusal:
            self.close_connection = True
            self._send(refusal.status, str(refusal).encode(), "text/plain; charset=utf-8")
        except DumpError as error:
            self._send(422, routes.encode({"error": str(error)}), "application/json")
        except (BrokenPipeError, ConnectionResetError, TimeoutError):
            self.close_connection = True
        except Exception:
            self.close_connection = True
            self._send(500, routes.encode({"error": "msprobe view failed: see its terminal."}), "application/json")
            raise

    def _check_origin(self) -> None:
        if self.headers.get("Host", "") not in self.server.hosts:
            raise Refused(403, "This server accepts only the hosts 127.0.0.1 and localhost.")
        origin = self.headers.get("Origin")
        if origin is not None and origin not in {f"http://{host}" for host in self.server.hosts}:
            raise Refused(403, "This server accepts only requests from its own page.")

    def _check_cookie(self) -> None:
        try:
            found = SimpleCookie(self.headers.get("Cookie", "")).get(self.server.cookie)
        except CookieError:
            found = None
        given = found.value if found is not None else ""
        if not secrets.compare_digest(given.encode(), self.server.secret.encode()):
            raise Refused(403, NO_TOKEN)

    def _get(self) -> None:
        try:
            parts = urlsplit(self.path)
            query = dict(parse_qsl(parts.query, max_num_fields=32))
        except ValueError:
            raise Refused(400, "The address is not one of this page.") from None
        if parts.path == "/" and "token" in query:
            self._enter(query["token"])
            return
        self._check_cookie()
        if parts.path in routes.GET:
            reply = routes.GET[parts.path](self.server.session, query)
            self._send(200, reply.body, reply.kind)
            return
        if parts.path != "/":
            raise Refused(404, "There is no such page.")
        self._send(200, self._page(), "text/html; charset=utf-8")

    def _page(self) -> bytes:
        """The page with its answer: one response is enough to show it. Names in it are data and cannot end a tag."""
        answer = routes.answer(self.server.session, {}).body.replace(b"<", b"\\u003c")
        data = b'<script type="application/json" id="first_answer">' + answer + b"</script>\n"
        page = page_files.page()
        return page.before.encode() + data + page.after.encode()

    def _enter(self, token: str) -> None:
        if not self.server.exchange(token):
            raise Refused(403, NO_TOKEN)
        self.send_response(303)
        self.send_header("Location", "/")
        self.send_header("Set-Cookie", f"{self.server.cookie}={self.server.secret}; HttpOnly; SameSite=Strict; Path=/")
        self._finish(b"", "text/plain")

    def _post(self) -> None:
        self._check_cookie()
        if self.headers.get("Origin") is None or self.headers.get_content_type() != "application/json":
            raise Refused(403, "Only the page itself may send this request.")
        length = self.headers.get("Content-Length", "")
        if not length.isascii() or not length.isdigit() or len(length) > 9 or int(length) > MOST_BODY:
            raise Refused(413, "The request is too large.")
        route = routes.POST.get(urlsplit(self.path).path)
        if route is None:
            raise Refused(404, "There is no such page.")
        try:
            body = json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            raise Refused(400, "The request is not JSON.") from None
        if not isinstance(body, dict):
            raise Refused(400, "The request is not a JSON object.")
        reply = route(self.server.session, body)
        self._send(200, reply.body, reply.kind)

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self._finish(body, kind)

    def _finish(self, body: bytes, kind: str) -> None:
        self.send_header("Content-Security-Policy", self.server.policy)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
