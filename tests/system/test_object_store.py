"""A real S3 server: tables read from it, models, labels and runs written to it."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import zarr

from daskmm import KMeans, PowerKMeans, load
from daskmm.cli.main import main
from daskmm.data.files import open_data

pytestmark = [pytest.mark.long, pytest.mark.timeout(240)]


# Forwards connections to a port to another one; a server is out of reach while this is killed.
FORWARD = """
import socket, socketserver, sys, threading
class Forward(socketserver.BaseRequestHandler):
    def handle(self):
        with socket.create_connection(("127.0.0.1", int(sys.argv[2]))) as other:
            back = threading.Thread(target=self.pour, args=(other, self.request), daemon=True)
            back.start()
            self.pour(self.request, other)
            back.join()
    def pour(self, source, target):
        try:
            while data := source.recv(1 << 16):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass
class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True
Server(("127.0.0.1", int(sys.argv[1])), Forward).serve_forever()
"""


def free_port():
    """A port nobody has, below those that a system hands to whoever opens a connection."""
    for port in np.random.default_rng().permutation(np.arange(20_000, 32_000)).tolist():
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port
    raise OSError("no port is free")


def wait_for(port):
    """Return when somebody listens at the port."""
    for _ in range(600):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    raise TimeoutError(f"nobody listens at port {port}")


def forwarding(door, port):
    process = subprocess.Popen([sys.executable, "-c", FORWARD, str(door), str(port)])
    wait_for(door)
    return process


@pytest.fixture(scope="session")
def ports():
    """The port of which the environment says that S3 is there, and that of the server.

    s3fs keeps the first address in its instances, and a test process may come to this module twice.
    """
    return free_port(), free_port()


class Server:
    """A server of S3 in a process of its own, which forgets everything when it is killed."""

    def __init__(self, port):
        self.port = port
        self.start()

    def start(self):
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, **quiet)
        wait_for(self.port)
        self.files().mkdir("bucket")

    def kill(self):
        self.process.kill()
        self.process.wait()

    def files(self):
        """The files on the server, reached directly."""
        import s3fs

        address = f"http://127.0.0.1:{self.port}"
        return s3fs.S3FileSystem(endpoint_url=address, skip_instance_cache=True)


@pytest.fixture(scope="module")
def server(ports):
    """A server with an empty bucket; the environment's address is that of what forwards to it."""
    door, port = ports
    former = dict(os.environ)
    os.environ |= {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{door}",
        "AWS_ACCESS_KEY_ID": "someone",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    try:
        running = Server(port)
        yield running
        running.kill()
    finally:
        os.environ.clear()
        os.environ.update(former)


@pytest.fixture
def way(server, ports):
    with forwarding(*ports) as process:
        yield process
        process.kill()


@pytest.mark.usefixtures("way")
def test_a_session_on_s3_writes_no_local_files(tmp_path, capsys):
    bucket = "s3://bucket"
    X = np.random.default_rng(0).normal(size=(1000, 4))
    store = zarr.create_array(f"{bucket}/table.zarr", shape=X.shape, chunks=(250, 4), dtype="f8")
    store[:] = X
    fit = [
        "fit",
        f"{bucket}/table.zarr",
        "-k",
        "3",
        "--out",
        f"{bucket}/run",
        "--report",
        "--quiet",
    ]
    assert main(fit) == 0
    assert main(fit) == 2
    assert "s3://bucket/run exists" in capsys.readouterr().err
    labels = f"{bucket}/labels.zarr"
    assert main(["predict", f"{bucket}/run", f"{bucket}/table.zarr", "--out", labels]) == 0
    assert main(["inspect", f"{bucket}/run", "--json"]) == 0
    first, second = (
        zarr.open_array(f"{bucket}/{name}", mode="r")[:]
        for name in ("labels.zarr", "run/labels.zarr")
    )
    np.testing.assert_array_equal(first, second)

    model = KMeans(3, random_state=0).fit(X)
    model.save(f"{bucket}/model")
    np.testing.assert_array_equal(load(f"{bucket}/model").labels_, model.labels_)
    model.save(f"{bucket}/model", overwrite=True)
    with pytest.raises(FileExistsError):
        model.save(f"{bucket}/model")
    assert not list(tmp_path.iterdir())


def test_a_fit_goes_on_when_a_server_that_was_killed_is_back(server, way, ports, tmp_path):
    X = np.random.default_rng(1).normal(size=(1000, 4))
    store = zarr.create_array("s3://bucket/read.zarr", shape=X.shape, chunks=(250, 4), dtype="f8")
    store[:] = X
    table = open_data("s3://bucket/read.zarr", chunks=250)
    options = {"sample_size": None, "random_state": 0, "tol": 0.0, "max_iter": 6}
    expected = PowerKMeans(3, **options).fit(table)
    server.files().get("bucket", str(tmp_path / "disk"), recursive=True)
    back = []

    def come_back():
        server.start()
        server.files().put(str(tmp_path / "disk") + "/", "bucket/", recursive=True)
        back.append(forwarding(*ports))

    def kill(record):
        if record.iteration == 2:
            for process in (way, server.process):
                process.kill()
                process.wait()
            threading.Timer(20.0, come_back).start()

    try:
        kept = {"checkpoint": "s3://bucket/kept", "checkpoint_every": 1}
        model = PowerKMeans(3, callbacks=[kill], **kept, **options).fit(table)
        assert back, "the outage has ended"
        assert len(server.files().ls("bucket/kept")) == 2
    finally:
        for process in back:
            process.kill()
            process.wait()
    np.testing.assert_array_equal(model.cluster_centers_, expected.cluster_centers_)


CLIENT = """
import os, sys
from daskmm import PowerKMeans
from daskmm.data.files import open_data

def kill(record):
    if record.iteration == 4:
        os.kill(os.getpid(), 9)

options = {"sample_size": None, "random_state": 0, "tol": 0.0, "max_iter": 8}
kept = {"checkpoint": "s3://bucket/client", "checkpoint_every": 1}
PowerKMeans(3, callbacks=[kill], **kept, **options).fit(open_data(sys.argv[1], chunks=250))
"""


@pytest.mark.usefixtures("way")
def test_a_fit_that_is_killed_is_resumed_from_s3():
    X = np.random.default_rng(2).normal(size=(1000, 4))
    url = "s3://bucket/again.zarr"
    store = zarr.create_array(url, shape=X.shape, chunks=(250, 4), dtype="f8")
    store[:] = X
    assert subprocess.run([sys.executable, "-c", CLIENT, url], check=False).returncode == -9
    options = {"sample_size": None, "random_state": 0, "tol": 0.0, "max_iter": 8}
    table, seen = open_data(url, chunks=250), []
    kept = {"checkpoint": "s3://bucket/client", "checkpoint_every": 1}
    model = PowerKMeans(3, callbacks=[seen.append], **kept, **options).fit(table)
    assert seen[0].iteration >= 4
    expected = PowerKMeans(3, **options).fit(table)
    np.testing.assert_array_equal(model.cluster_centers_, expected.cluster_centers_)
