"""What starts clusters: local.sh for real, slurm.sh under a stand-in, the others by schema."""

import contextlib
import importlib.metadata
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tomllib

import dask.array as da
import jsonschema
import numpy as np
import psutil
import pytest
import yaml
from _local import ROOT, environment, local_cluster, start
from _support import blobs
from distributed import Client

from daskmm import PowerKMeans

pytestmark = pytest.mark.long

DEPLOY = ROOT / "deploy"


def family_of(script):
    """Processes below a script, and by their commands those of dask: scheduler, worker."""
    family, servers = psutil.Process(script.pid).children(recursive=True), {}
    for process in family:
        # Short naps of the script come and go.
        with contextlib.suppress(psutil.Error):
            command = process.cmdline()
            if command[1:3] == ["-m", "dask"]:
                servers[command[3]] = process
    return family, servers


ENDS = {
    "Ctrl-C": (lambda script: os.killpg(script.pid, signal.SIGINT), 130),
    "TERM": (lambda script: script.send_signal(signal.SIGTERM), 143),
    "the scheduler dies": (lambda script: family_of(script)[1]["scheduler"].kill(), 1),
}


@pytest.mark.timeout(240)
@pytest.mark.parametrize("end", ENDS)
def test_local_cluster_leaves_nothing_behind(end, tmp_path):
    act, code = ENDS[end]
    with local_cluster(2, TMPDIR=str(tmp_path)) as (script, told):
        family, servers = family_of(script)
        assert servers.keys() == {"scheduler", "worker"}
        act(script)
        _, err = script.communicate(timeout=60)
    assert script.returncode == code
    assert ("have ended" in err) == (code == 1)
    assert told[2:] == [
        "workers: 2, threads of each: 1, memory of each: 0.93 GiB",
        "Ctrl-C stops them.",
    ]
    _, alive = psutil.wait_procs(family, timeout=5)
    assert not alive
    assert list(tmp_path.iterdir()) == []
    host, port = told[0].removeprefix("tcp://").split(":")
    with pytest.raises(ConnectionRefusedError), socket.create_connection((host, int(port)), 5):
        pass


@pytest.mark.timeout(240)
def test_a_fit_runs_on_a_local_cluster():
    X, truth = blobs()
    with local_cluster(1) as (_, told), Client(told[0]) as client:
        (limit,) = client.run(lambda dask_worker: dask_worker.memory_manager.memory_limit).values()
        assert limit == 10**9
        assert all(client.run(lambda dask_worker: dask_worker.nanny).values())
        model = PowerKMeans(4, random_state=0).fit(da.from_array(X, chunks=(60, 5)))
        assert len(set(zip(model.labels_.compute(), truth, strict=True))) == 4


def test_a_local_cluster_on_a_port_that_is_taken_fails(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        with start("-n", "1", "-p", port, "--dashboard", "0", TMPDIR=str(tmp_path)) as script:
            out, err = script.communicate(timeout=60)
    assert script.returncode == 1
    assert out == ""
    assert f"no scheduler on port {port}" in err
    assert "Address already in use" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--workers", "0"], "whole numbers from 1"),
        (["--threads", "two"], "whole numbers from 1"),
        (["--port", "http"], "a port is a whole number"),
        (["--port"], "--port needs a value"),
        (["--nodes", "3"], "no such option: --nodes"),
    ],
)
def test_wrong_options_of_a_local_cluster_are_refused(options, told):
    with start(*options) as script:
        _, err = script.communicate(timeout=30)
    assert script.returncode == 2
    assert told in err
    assert err.count("\n") == 1


def test_help_of_the_local_cluster_names_its_options():
    with start("--help") as script:
        out, err = script.communicate(timeout=30)
    assert script.returncode == 0
    assert err == ""
    for option in ("--workers", "--threads", "--memory-limit", "--port", "--dashboard"):
        assert option in out


def test_a_local_cluster_without_a_python_fails(tmp_path):
    with start(PYTHON=str(tmp_path / "absent")) as script:
        _, err = script.communicate(timeout=30)
    assert script.returncode == 2
    assert "no python with daskmm and distributed" in err


@pytest.mark.parametrize("script", ["local.sh", "slurm.sh"])
def test_scripts_are_bash(script):
    path = DEPLOY / script
    assert os.access(path, os.X_OK)
    subprocess.run(["bash", "-n", path], check=True)


SRUN = """#!/usr/bin/env bash
# Runs as many tasks as it is told, all of them here.
trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT
trap 'exit 143' TERM
echo "$@" >"$0.called"
while [[ $1 == --* ]]; do
    [[ $1 == --ntasks=* ]] && tasks=${1#--ntasks=}
    shift
done
for number in $(seq 0 $((tasks - 1))); do
    SLURM_PROCID=$number "$@" &
done
wait
"""
MAIN = "import sys; from daskmm.cli.main import main; sys.exit(main())"
SCRIPT = """
import os, sys
from pathlib import Path
from distributed import Client

with Client(os.environ["DASKMM_SCHEDULER"]) as client:
    limits = client.run(lambda dask_worker: dask_worker.memory_manager.memory_limit)
    Path(sys.argv[1]).write_text(str([*client.nthreads().values(), *limits.values()]))
sys.exit(7)
"""


@pytest.fixture
def allocation(tmp_path, monkeypatch):
    """Runs slurm.sh in a folder, as a batch job of three tasks."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in {
        "srun": SRUN,
        "daskmm": f'#!/bin/sh\nexec {sys.executable} -c "{MAIN}" "$@"\n',
    }.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    path = os.pathsep.join([str(programs), os.environ["PATH"]])
    job = {"SLURM_NTASKS": "3", "SLURM_CPUS_PER_TASK": "2", "SLURM_MEM_PER_CPU": "500"}
    settings = environment(PATH=path, DASKMM_INTERFACE="lo", **job)
    monkeypatch.chdir(tmp_path)

    def run(*command, **more):
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        job = [DEPLOY / "slurm.sh", *command]
        with subprocess.Popen(job, env=settings | more, start_new_session=True, **pipes) as script:
            try:
                out, err = script.communicate(timeout=600)
            except subprocess.TimeoutExpired:
                # With its scheduler and workers, which would go on.
                os.killpg(script.pid, signal.SIGKILL)
                raise
        return subprocess.CompletedProcess(job, script.returncode, out, err)

    return run


@pytest.mark.timeout(700)
def test_a_slurm_job_runs_daskmm_fit(allocation, tmp_path):
    np.save(tmp_path / "x.npy", blobs()[0])
    command = "daskmm fit x.npy -k 4 --out run --no-pictures --quiet"
    done = allocation(*command.split(), SLURM_NTASKS="2")
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["n_clusters"], summary["n_rows"]) == (4, 240)
    called = (tmp_path / "bin" / "srun.called").read_text()
    assert called.startswith("--ntasks=2 --cpus-per-task=2 --kill-on-bad-exit=0 bash -c")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bin", "run", "x.npy"]
    assert not [
        process.pid
        for process in psutil.process_iter(["cwd"])
        if process.info["cwd"] == str(tmp_path) and process.pid != os.getpid()
    ]


@pytest.mark.timeout(700)
def test_a_slurm_job_runs_a_script_and_returns_its_code(allocation, tmp_path):
    (tmp_path / "job.py").write_text(SCRIPT)
    done = allocation("job.py", "found")
    assert done.returncode == 7, done.stderr
    assert (tmp_path / "found").read_text() == str([2, 2, *[900 * 2**20] * 2])


def test_a_slurm_job_without_command_or_tasks_is_refused(allocation):
    nothing = allocation()
    assert (nothing.returncode, nothing.stdout) == (2, "")
    assert "what is to be run?" in nothing.stderr
    alone = allocation("job.py", SLURM_NTASKS="1")
    assert alone.returncode == 2
    assert "a task for the scheduler and one for a worker" in alone.stderr


def of_distribution(name, path):
    """Text of a file that a distribution brings, which need not be importable."""
    try:
        files = importlib.metadata.files(name)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{name} is not installed (the extra 'manifests')")
    (found,) = (file for file in files or () if str(file).endswith(path))
    return found.read_text(encoding="utf-8")


def closed(schema):
    """The schema with unknown fields refused, which Kubernetes drops without a word."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {name: closed(part) for name, part in schema.items()}
    # `properties` may also be the name of a field.
    if schema.get("type") == "object" and isinstance(schema.get("properties"), dict):
        schema.setdefault("additionalProperties", False)
    return schema


def documents():
    claim, cluster = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    return claim, cluster


def test_the_dask_cluster_obeys_the_schema_of_its_operator():
    path = "dask-kubernetes-operator/crds/daskcluster.yaml"
    definition = yaml.safe_load(of_distribution("dask-kubernetes", path))
    (version,) = definition["spec"]["versions"]
    cluster = documents()[1]
    group = definition["spec"]["group"]
    assert cluster["apiVersion"] == f"{group}/{version['name']}"
    assert cluster["kind"] == definition["spec"]["names"]["kind"]
    spec = closed(version["schema"]["openAPIV3Schema"]["properties"]["spec"])
    check = jsonschema.Draft202012Validator(spec)
    check.validate(cluster["spec"])
    # The check does refuse: a misspelt field, deep down.
    container = cluster["spec"]["worker"]["spec"]["containers"][0]
    container["imagePulPolicy"] = container.pop("imagePullPolicy")
    with pytest.raises(jsonschema.ValidationError):
        check.validate(cluster["spec"])


def test_pods_of_the_dask_cluster_share_the_volume_and_match_the_service():
    claim, cluster = documents()
    assert (claim["apiVersion"], claim["kind"]) == ("v1", "PersistentVolumeClaim")
    spec = cluster["spec"]
    for role in ("worker", "scheduler"):
        pod = spec[role]["spec"]
        (volume,) = pod["volumes"]
        assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
        (container,) = pod["containers"]
        assert container["args"][:2] == ["dask", role]
        assert container["volumeMounts"] == [{"name": volume["name"], "mountPath": "/data"}]
    service = spec["scheduler"]["service"]
    assert service["selector"] == {
        "dask.org/cluster-name": cluster["metadata"]["name"],
        "dask.org/component": "scheduler",
    }
    ports = {port["name"] for port in spec["scheduler"]["spec"]["containers"][0]["ports"]}
    assert {port["targetPort"] for port in service["ports"]} == ports


def compose():
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def test_compose_obeys_its_schema():
    schema = json.loads(of_distribution("check-jsonschema", "vendor/compose-spec.json"))
    check = jsonschema.validators.validator_for(schema)(schema)
    check.validate(compose())
    wrong = compose()
    wrong["services"]["worker"]["comand"] = []
    with pytest.raises(jsonschema.ValidationError):
        check.validate(wrong)


def test_services_of_compose_share_the_volume_and_the_scheduler():
    file = compose()
    assert set(file["services"]) == {"scheduler", "worker", "notebook"}
    for service in file["services"].values():
        assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
        assert service["volumes"] == ["data:/data"]
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    assert set(file["volumes"]) == {"data"}
    assert "tcp://scheduler:8786" in file["services"]["worker"]["command"]
    assert file["services"]["notebook"]["environment"]["DASKMM_SCHEDULER"] == "tcp://scheduler:8786"


def has_docker_compose():
    if not shutil.which("docker"):
        return False
    asked = subprocess.run(["docker", "compose", "version"], capture_output=True)
    return asked.returncode == 0


@pytest.mark.skipif(not has_docker_compose(), reason="docker compose is not installed")
def test_docker_compose_accepts_the_file():
    command = ["docker", "compose", "--file", DEPLOY / "compose.yaml", "config", "--quiet"]
    subprocess.run(command, check=True)


def test_the_dockerfile_copies_what_exists_and_does_not_run_as_root():
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    copied = [
        word
        for line in lines
        if line[0] == "COPY"
        for word in line[1:-1]
        if not word.startswith("--")
    ]
    assert copied
    assert all((ROOT / source).exists() for source in copied)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    # What an installation of the package reads.
    assert {"pyproject.toml", "daskmm", project["readme"], *project["license-files"]} <= set(copied)
    extras = re.findall(r'"\.\[([\w,-]+)\]"', text)
    assert extras
    assert set(",".join(extras).split(",")) <= set(project["optional-dependencies"])
    users = [line[1] for line in lines if line[0] == "USER"]
    assert users
    assert users[-1] not in ("root", "0")
    assert lines[0][1].startswith("python:3.")
    assert lines[0][1].endswith("-slim")
