"""Sources that answer, that refuse, that are silent; and the authors' archive from a server here."""

import functools
import hashlib
import http.server
import io
import socket
import sys
import tarfile
import threading

import pytest

from data_cases import make_images, write_batches
from trainact.lab.data import DataError, downloads
from trainact.lab.data.cifar_archive import fetch_archive
from trainact.lab.data.cifar_pickles import find_batches, read_batches
from trainact.lab.torchvision_import import import_torchvision

TRAIN, TEST = make_images(50, seed=1), make_images(20, seed=2)
NAME = "cifar-10-python.tar.gz"


def test_a_source_that_answers_has_no_problem():
    assert downloads.find_problem(lambda: None) == ""


def test_an_error_is_told_in_one_line():
    def fail():
        raise ConnectionError("no\n network")

    assert downloads.find_problem(fail) == "ConnectionError: no network"


def test_a_silent_source_is_given_up(monkeypatch):
    assert downloads.ANSWER_SECONDS == 10
    monkeypatch.setattr(downloads, "ANSWER_SECONDS", 0.1)
    release = threading.Event()
    assert downloads.find_problem(lambda: release.wait(30)) == "no answer within 0.1 s"
    release.set()


@pytest.fixture
def cifar10(monkeypatch):
    """torchvision's class, whose archive is asked for on this machine."""
    monkeypatch.setenv("no_proxy", "*")
    return import_torchvision().datasets.CIFAR10


@pytest.fixture
def serve(tmp_path, cifar10, monkeypatch):
    """A function that serves an archive; its checksum is the known one."""
    folder = tmp_path / "server"
    folder.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    class Server(http.server.ThreadingHTTPServer):
        def handle_error(self, *_):  # the first request only asks and closes
            pass

    server = Server(("127.0.0.1", 0), functools.partial(Handler, directory=folder))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()

    def put(archive: bytes) -> None:
        (folder / NAME).write_bytes(archive)
        monkeypatch.setattr(cifar10, "url", f"http://127.0.0.1:{server.server_port}/{NAME}")
        monkeypatch.setattr(cifar10, "tgz_md5", hashlib.md5(archive).hexdigest())

    yield put
    server.shutdown()
    thread.join()
    server.server_close()


def make_archive(folder, arcname="cifar-10-batches-py"):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as opened:
        opened.add(write_batches(folder, "cifar10", TRAIN, TEST), arcname=arcname)
    return packed.getvalue()


def test_the_authors_archive_is_downloaded_and_unpacked(serve, tmp_path, capfd):
    serve(make_archive(tmp_path / "made"))
    target = tmp_path / "target"
    fetch_archive("cifar10", target)
    train, _ = read_batches("cifar10", find_batches("cifar10", target))
    assert train.images.equal(TRAIN.images)
    assert capfd.readouterr().err == ""  # no progress bar in a log
    assert socket.getdefaulttimeout() is None


def test_a_terminal_gets_a_progress_bar(serve, tmp_path, monkeypatch):
    class Screen(io.StringIO):
        def isatty(self):
            return True

    serve(make_archive(tmp_path / "made"))
    monkeypatch.setattr(sys, "stderr", Screen())
    fetch_archive("cifar10", tmp_path / "target")
    assert "100%" in sys.stderr.getvalue()


def test_an_archive_with_another_checksum_is_refused(serve, tmp_path, cifar10, monkeypatch):
    serve(make_archive(tmp_path / "made"))
    monkeypatch.setattr(cifar10, "tgz_md5", "0" * 32)
    with pytest.raises(DataError, match=r"cannot be downloaded \(RuntimeError: File not found or"):
        fetch_archive("cifar10", tmp_path / "target")


def test_an_archive_that_reaches_outside_or_is_damaged_is_refused(serve, tmp_path):
    serve(make_archive(tmp_path / "made", arcname="../outside"))
    with pytest.raises(
        DataError, match=rf"the archive {NAME} is damaged .*outside the destination"
    ):
        fetch_archive("cifar10", tmp_path / "target")
    assert not (tmp_path / "outside").exists()
    serve(b"no archive")
    with pytest.raises(DataError, match=rf"the archive {NAME} is damaged"):
        fetch_archive("cifar10", tmp_path / "other")


def test_a_server_without_the_archive_is_told(serve, tmp_path, cifar10, monkeypatch):
    serve(b"")
    monkeypatch.setattr(cifar10, "url", f"{cifar10.url}.bz2")
    with pytest.raises(DataError, match=r"cannot be read \(HTTPError: HTTP Error 404"):
        fetch_archive("cifar10", tmp_path / "target")


@pytest.mark.parametrize("headers", [b"", b"HTTP/1.0 200 OK\r\nContent-Length: 9\r\n\r\n"])
def test_a_server_that_falls_silent_is_given_up(headers, tmp_path, cifar10, monkeypatch):
    """It takes the connection, and sends nothing or only headers."""
    monkeypatch.setattr(downloads, "ANSWER_SECONDS", 0.3)
    held = []

    def answer():
        while True:
            try:
                held.append(server.accept()[0])
            except OSError:
                return
            held[-1].sendall(headers)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer)
        thread.start()
        monkeypatch.setattr(cifar10, "url", f"http://127.0.0.1:{server.getsockname()[1]}/{NAME}")
        with pytest.raises(DataError, match=r"imed out|no answer within 0\.3 s"):
            fetch_archive("cifar10", tmp_path / "target")
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
    for connection in held:
        connection.close()
