#!/usr/bin/env bash
# A dask scheduler and worker processes on this machine, until Ctrl-C.
set -euo pipefail

usage() {
    cat <<'END'
Start a dask scheduler and worker processes on this machine, and stop them all on Ctrl-C.

usage: deploy/local.sh [options]

  -n, --workers N         worker processes, each watched by a nanny that starts it again when it
                          dies (default: one for each processor)
  -t, --threads N         threads of each worker (default: 1)
  -m, --memory-limit SIZE memory of each worker, such as 2GB: a worker spills to disk as it comes
                          near, and is started again when it is past (default: four fifths of
                          the machine's memory, shared among the workers)
  -p, --port PORT         port of the scheduler, 0 for any that is free (default: 8786)
      --dashboard PORT    port of the dashboard, 0 for any that is free (default: 8787)
  -h, --help              this text

The first line on standard output is the scheduler's address, printed when all workers are there.
Give it to a notebook or a program in another terminal:

  export DASKMM_SCHEDULER=tcp://127.0.0.1:8786
  daskmm fit points.zarr -k 20 --out run --scheduler tcp://127.0.0.1:8786

The python is $PYTHON if that is set, else the first of python, python3 and the checkout's
.venv/bin/python that has daskmm and distributed.
END
}

fail() {
    echo "local.sh: $1" >&2
    exit 2
}

workers=$(getconf _NPROCESSORS_ONLN)
threads=1
memory=
port=8786
dashboard=8787
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) usage && exit 0 ;;
        -n | --workers | -t | --threads | -m | --memory-limit | -p | --port | --dashboard)
            [ $# -ge 2 ] || fail "$1 needs a value (see --help)" ;;
        *) fail "no such option: $1 (see --help)" ;;
    esac
    case $1 in
        -n | --workers) workers=$2 ;;
        -t | --threads) threads=$2 ;;
        -m | --memory-limit) memory=$2 ;;
        -p | --port) port=$2 ;;
        --dashboard) dashboard=$2 ;;
    esac
    shift 2
done
for number in "$workers" "$threads"; do
    case $number in
        '' | *[!0-9]* | 0) fail "workers and threads are whole numbers from 1 (see --help)" ;;
    esac
done
for number in "$port" "$dashboard"; do
    case $number in
        '' | *[!0-9]*) fail "a port is a whole number (see --help)" ;;
    esac
done
# dask takes a number up to 1 for a share of the machine's memory.
memory=${memory:-$(awk -v n="$workers" 'BEGIN { printf "%.6f", 0.8 / n }')}

python=
needed='import importlib.util, sys
sys.exit(not all(map(importlib.util.find_spec, ("daskmm", "distributed"))))'
for candidate in ${PYTHON:-python python3 "$(dirname "$0")/../.venv/bin/python"}; do
    if "$candidate" -c "$needed" 2>/dev/null; then
        python=$candidate
        break
    fi
done
[ -n "$python" ] || fail "no python with daskmm and distributed: pip install '.[distributed]'"

folder=$(mktemp -d "${TMPDIR:-/tmp}/daskmm-local.XXXXXX")
export DASK_TEMPORARY_DIRECTORY=$folder
processes=()

# The youngest first, so that workers take leave of the scheduler. What is left after ten seconds is
# killed, with all its children, which are of its process group.
stop() {
    trap '' INT TERM HUP
    local process tries
    for process in ${processes[@]+"${processes[@]}"}; do
        kill -TERM "$process" 2>/dev/null || true
        tries=0
        while kill -0 "$process" 2>/dev/null && [ $tries -lt 100 ]; do
            sleep 0.1
            tries=$((tries + 1))
        done
        kill -KILL -- "-$process" 2>/dev/null || true
    done
    rm -rf "$folder"
}
trap stop EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# In process groups of their own, so that Ctrl-C in a terminal reaches this script alone.
start() {
    local log=$folder/$1.log
    shift
    set -m
    "$python" "$@" >"$log" 2>&1 &
    set +m
    processes=("$!" ${processes[@]+"${processes[@]}"})
}

# Wait until one of the processes has come to its end. Signals end `wait` at once, and nothing else.
await_end() {
    local process
    while true; do
        for process in "${processes[@]}"; do
            kill -0 "$process" 2>/dev/null || return 0
        done
        sleep 0.3 &
        wait $!
    done
}

give_up() {
    echo "local.sh: $1. What was said last:" >&2
    grep -hE '^[A-Za-z.]*(Error|Exception)' "$folder"/*.log >&2 || tail -n 6 "$folder"/*.log >&2
    exit 1
}

start scheduler -m dask scheduler --host 127.0.0.1 --port "$port" \
    --dashboard-address "127.0.0.1:$dashboard" --scheduler-file "$folder/scheduler.json"
start workers -m dask worker --scheduler-file "$folder/scheduler.json" --host 127.0.0.1 \
    --nworkers "$workers" --nthreads "$threads" --memory-limit "$memory" \
    --no-dashboard
start ready -c '
import sys
from dask.utils import format_bytes
from distributed import Client

with Client(scheduler_file=sys.argv[1]) as client:
    client.wait_for_workers(int(sys.argv[2]), timeout=120)
    limits = client.run(lambda dask_worker: dask_worker.memory_manager.memory_limit)
    print(client.scheduler.address)
    print("dashboard:", client.dashboard_link or "none, as bokeh is not installed")
    print("workers: %d, threads of each: %d, memory of each: %s" % (
        len(limits), max(client.nthreads().values()), format_bytes(min(limits.values()))))
' "$folder/scheduler.json" "$workers"

ready=${processes[0]}
await_end
if kill -0 "$ready" 2>/dev/null || ! wait "$ready"; then
    give_up "no scheduler on port $port with $workers workers"
fi
cat "$folder/ready.log"
echo "Ctrl-C stops them."
processes=("${processes[@]:1}")
await_end
give_up "the scheduler or the workers' nannies have ended"
