"""Who may read through the server, and what: one browser, this page, nothing outside the dump."""

from __future__ import annotations

import base64
import gzip
import http.client
import json
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from written import call, saved, tensor, write_dump

from msprobe.cli import main
from msprobe.view.server import HOST, ViewServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, serve: Callable[..., ViewServer]) -> ViewServer:
    root = tmp_path_factory.mktemp("served")
    rank = root / "dump" / "step0" / "rank"
    (root / "secret.npy").write_bytes(b"secret")
    good = saved(rank, "good", np.arange(6, dtype=np.float32).reshape(2, 3))
    (rank / "dump_tensor_data" / "link.npy").symlink_to(root / "secret.npy")
    np.save(root / "outside.npy", np.ones(3, np.float32))
    (rank / "dump_tensor_data" / "outside.npy").symlink_to(root / "outside.npy")
    records = {
        "Functional.relu.0.forward": call(good, output=good),
        "Functional.relu.1.forward": call(
            tensor(1.0, [3], data_name="../../../../outside.npy"), output=tensor(1.0, [3], data_name="outside.npy")
        ),
        "Functional.relu.2.forward": call(tensor(1.0, data_name="/etc/hostname"), output=tensor(1.0)),
    }
    write_dump(root / "dump", records, task="tensor")
    return serve(root / "dump")


def ask(server: ViewServer, path: str, method: str = "GET", body: Any = None, **headers: str) -> tuple[int, bytes, Any]:
    connection = http.client.HTTPConnection(HOST, server.port, timeout=20)
    given = {"Host": f"127.0.0.1:{server.port}", **{name.replace("_", "-"): value for name, value in headers.items()}}
    connection.request(method, path, body, given)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, content, answer.headers


def entered(server: ViewServer) -> dict[str, str]:
    return {"Cookie": f"{server.cookie}={server.secret}"}


@pytest.mark.parametrize("path", ["/", "/main.js", "/api/answer", "/api/columns", "/?token=wrong", "/?token="])
def test_without_the_token_nothing_is_answered(server: ViewServer, path: str) -> None:
    status, content, _ = ask(server, path)
    assert status == 403
    assert b"Functional" not in content


def test_the_printed_address_works_until_the_server_stops(tmp_path: Path, serve: Callable[..., ViewServer]) -> None:
    one = serve(write_dump(tmp_path / "d", {"Functional.relu.0.forward": call(tensor(1.0), output=tensor(1.0))}))
    for _ in range(3):
        status, _, headers = ask(one, one.address.partition(str(one.port))[2])
        assert status == 303
        cookie = headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert ask(one, "/", Cookie=cookie.partition(";")[0])[0] == 200


def test_the_address_on_a_command_line_works_once(tmp_path: Path, serve: Callable[..., ViewServer]) -> None:
    one = serve(write_dump(tmp_path / "d", {"Functional.relu.0.forward": call(tensor(1.0), output=tensor(1.0))}))
    path = one.address_once.partition(str(one.port))[2]
    assert one.address_once != one.address
    assert ask(one, path)[0] == 303
    status, _, headers = ask(one, path)
    assert status == 403
    assert headers["Set-Cookie"] is None


def test_a_second_browser_and_one_without_its_cookie_get_in(tmp_path: Path, open_view: Callable[..., Any]) -> None:
    dump = write_dump(tmp_path / "d", {"Functional.relu.0.forward": call(tensor(1.0), output=tensor(1.0))})
    first = open_view(dump, fresh=True)
    first.page.reload()
    first.page.wait_for_selector("body[data-ready=yes]")
    address = first.address
    first.page.goto("about:blank")  # it would ask the server without its cookie, and be refused
    for context in (first.context.browser.new_context(), first.context):
        context.clear_cookies()
        page = context.new_page()
        page.goto(address)
        page.wait_for_selector("body[data-ready=yes]")
        page.close()


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1", "", "0.0.0.0:{port}"])
def test_another_host_is_refused(server: ViewServer, host: str) -> None:
    assert ask(server, "/api/answer", **entered(server), Host=host.format(port=server.port))[0] == 403


def test_localhost_is_this_machine_too(server: ViewServer) -> None:
    assert ask(server, "/api/answer", **entered(server), Host=f"localhost:{server.port}")[0] == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1", "https://127.0.0.1:{port}"])
def test_another_origin_is_refused(server: ViewServer, origin: str) -> None:
    assert ask(server, "/api/answer", **entered(server), Origin=origin.format(port=server.port))[0] == 403


def test_only_the_page_itself_can_post(server: ViewServer) -> None:
    own = f"http://127.0.0.1:{server.port}"
    json_type = {"Content_Type": "application/json"}
    body = json.dumps({"target": "a", "golden": "b"})
    assert ask(server, "/api/match", "POST", body, **entered(server), **json_type)[0] == 403
    assert ask(server, "/api/match", "POST", body, **entered(server), Origin=own, Content_Type="text/plain")[0] == 403
    assert ask(server, "/api/match", "POST", body, Origin=own, **json_type)[0] == 403
    status, content, _ = ask(server, "/api/match", "POST", body, **entered(server), Origin=own, **json_type)
    assert status == 422
    assert "golden dump" in json.loads(content)["error"]
    assert ask(server, "/api/match", "POST", b"[1]", **entered(server), Origin=own, **json_type)[0] == 400


@pytest.mark.parametrize(
    "path",
    [
        "/../server.py",
        "/%2e%2e/server.py",
        "/views/../../session.py",
        "//etc/passwd",
        "/etc/passwd",
        "/step0/rank/dump.json",
        "/main.js",
    ],
)
def test_only_files_of_the_page_are_served(server: ViewServer, path: str) -> None:
    assert ask(server, path, **entered(server))[0] == 404


@pytest.mark.parametrize("row", [2, 3, 4], ids=["a path upwards", "a link out of the dump", "an absolute path"])
def test_a_dump_cannot_name_a_file_outside_of_it(server: ViewServer, row: int) -> None:
    status, content, _ = ask(server, f"/api/tensor?row={row}", **entered(server))
    assert status == 422
    assert "error" in json.loads(content)


@pytest.mark.parametrize("query", ["", "?row=-1", "?row=999999", "?row=0x1", "?row=١", "?row=1&axes=0"])
def test_a_wrong_number_is_one_clear_error(server: ViewServer, query: str) -> None:
    from urllib.parse import quote

    status, content, _ = ask(server, "/api/slice" + quote(query, safe="?=&"), **entered(server))
    assert status == 422
    assert json.loads(content)["error"]


def test_every_answer_has_the_strict_policy(server: ViewServer) -> None:
    for path, headers in (("/", entered(server)), ("/api/answer", entered(server)), ("/", {})):
        _, _, given = ask(server, path, **headers)
        policy = given["Content-Security-Policy"]
        assert given["X-Content-Type-Options"] == "nosniff"
        assert given["Referrer-Policy"] == "no-referrer"
        assert "unsafe" not in policy
        assert policy.startswith("default-src 'none'; script-src 'sha256-")
        assert "'self'" not in policy.replace("connect-src 'self'", "")


def test_the_page_is_one_document_that_asks_for_nothing_before_it_shows_the_answer(server: ViewServer) -> None:
    status, content, _ = ask(server, "/", **entered(server))
    assert status == 200
    page = content.decode()
    assert "src=" not in page.partition("<script>")[0]
    assert '<link rel="stylesheet"' not in page
    given = page.partition('id="first_answer">')[2].partition("</script>")[0]
    answer = json.loads(ask(server, "/api/answer", **entered(server))[1])
    assert json.loads(given) == answer


def test_it_listens_on_this_machine_only(server: ViewServer) -> None:
    assert server.server_address[0] == "127.0.0.1"


def test_a_slice_has_the_numbers_of_the_tensor(server: ViewServer) -> None:
    path = "/api/slice?row=0&mode=target&axes=1,0&index=0,0"
    found = json.loads(ask(server, path, **entered(server))[1])
    values = np.frombuffer(base64.b64decode(found["values"]), "<f4").reshape(found["height"], found["width"])
    assert values.tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]


def test_only_recorded_source_lines_are_shown(tmp_path: Path) -> None:
    """A dump that names a file of the reader, a line and its text does not show the lines around it."""
    script = tmp_path / "settings.py"
    script.write_text("PASSWORD = 'hunter2'\nDEBUG = True\nKEY = 'secret'\n")
    frame = f"File {script}, line 2, in f, \n DEBUG = True"
    records = {"Functional.relu.0.forward": call(tensor(1.0), output=tensor(math.inf))}
    dump = write_dump(tmp_path / "d", records, stacks={"0": [list(records), [frame]]})
    for words in (["view", str(dump), "--export"], ["compare", str(dump), str(dump), "--html"]):
        page = tmp_path / "page.html"
        assert main([*words, str(page)]) in (0, 1, 2)
        packed = re.findall(r"<script [^>]*class=.data.[^>]*>([^<]*)<", page.read_text())
        texts = [gzip.decompress(base64.b64decode(data)) for data in packed]
        assert any(b"DEBUG = True" in text for text in texts)
        assert not any(b"hunter2" in text or b"secret" in text for text in texts)


def test_the_recorded_lines_are_those_around_the_line() -> None:
    from msprobe.view.source_lines import excerpt_of

    lines = {1: "import a", 4: "def f(x):", 5: "    b = 2", 6: "    return x", 7: "c = 3"}
    stack = ["File /site-packages/torch/x.py, line 1, in g, \n y", "File /me/train.py, line 6, in f, \n return x"]
    found = excerpt_of(stack, [{}, {"/me/train.py": lines}])
    assert found == {
        "file": "/me/train.py", "line": 6, "first": 4, "note": "",
        "lines": ["def f(x):", "    b = 2", "    return x", "c = 3"],
    }  # fmt: skip
    changed, less = {"/me/train.py": {**lines, 6: "other"}}, {"/me/train.py": {5: "b"}}
    for recorded in ([], [{}], [{"/me/other.py": lines}], [changed], [less]):
        found = excerpt_of(stack, recorded)
        assert found is not None
        assert (found["lines"], found["first"], found["note"]) == (["return x"], 6, "unread")


def test_the_command_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", str(tmp_path / "nothing")]) == 2
    assert "does not exist" in capsys.readouterr().err
    assert main(["view", str(tmp_path)]) == 2
    assert "not a dump" in capsys.readouterr().err
    dump = write_dump(tmp_path / "d", {"Functional.relu.0.forward": call(tensor(1.0), output=tensor(1.0))})
    assert main(["view", str(dump), "--port", "70000"]) == 2
    assert "--port" in capsys.readouterr().err
    assert main(["view", str(dump), "--export", str(tmp_path / "no" / "x.html")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_the_command_prints_the_address_and_the_tunnel(tmp_path: Path) -> None:
    import signal
    import subprocess
    import sys

    def heed() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a job in the background ignores it otherwise

    dump = write_dump(tmp_path / "d", {"Functional.relu.0.forward": call(tensor(1.0), output=tensor(1.0))})
    words = [sys.executable, "-m", "msprobe", "view", str(dump), "--no-open"]
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, text=True, env={**os.environ, "DISPLAY": ""}, preexec_fn=heed
    )
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(3)]
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) == 0
    port = lines[0].split("127.0.0.1:")[1].split("/")[0]
    assert "?token=" in lines[0]
    assert f"ssh -L {port}:127.0.0.1:{port} " in lines[1]


@pytest.mark.parametrize("path", ["http://[/", "/?" + "&".join(f"a{number}=1" for number in range(40))])
def test_an_address_that_cannot_be_read_is_refused(server: ViewServer, path: str) -> None:
    assert ask(server, path, **entered(server))[0] == 400


@pytest.mark.parametrize("length", ["\u00b2", "-1", "9" * 5000, ""])
def test_a_length_that_is_no_number_is_refused(server: ViewServer, length: str) -> None:
    own = {"Origin": f"http://127.0.0.1:{server.port}", "Content_Type": "application/json"}
    assert ask(server, "/api/match", "POST", b"", **entered(server), **own, Content_Length=length)[0] == 413


def test_two_tabs_count_each_element_once() -> None:
    from concurrent.futures import ThreadPoolExecutor
    from types import SimpleNamespace

    from msprobe.view.tensors import BLOCK, Sweep

    values = np.ones(8 * BLOCK, np.float32)
    sweep = Sweep(SimpleNamespace(target=values, golden=None, same_shape=False, shape=values.shape))  # type: ignore[arg-type]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: sweep.advance(10.0), range(4)))
    assert sum(sweep.advance(0.0)["histogram"]["target"]) == values.size
