#!/usr/bin/env bash
#SBATCH --job-name=daskmm
#SBATCH --ntasks=5
#SBATCH --cpus-per-task=2
#SBATCH --mem-per-cpu=4G
#SBATCH --time=02:00:00
#
# A dask cluster for as long as one command takes: the first task is the scheduler, the others are
# workers. Submit it in a folder that all nodes see, in an environment that has daskmm:
#
#   sbatch deploy/slurm.sh daskmm fit points.zarr -k 20 --out run
#   sbatch --ntasks=17 --time=08:00:00 deploy/slurm.sh cluster.py with arguments
#
# A daskmm command is given --scheduler ADDRESS; every command finds the address in
# DASKMM_SCHEDULER. Out of time, submit the same daskmm fit again: it goes on from its checkpoint.
#
# PYTHON names another python than the one on the path, DASKMM_INTERFACE the network interface that
# the nodes talk over (ib0).
set -euo pipefail

fail() {
    echo "slurm.sh: $1" >&2
    exit "${2:-1}"
}

[ $# -gt 0 ] || fail "what is to be run? sbatch deploy/slurm.sh daskmm fit INPUT -k K --out RUN" 2
tasks=${SLURM_NTASKS:-0}
[ "$tasks" -ge 2 ] || fail "it takes a task for the scheduler and one for a worker: --ntasks=2" 2
export PYTHON=${PYTHON:-python}
export DASKMM_THREADS=${SLURM_CPUS_PER_TASK:-1}
# Nine tenths of what a task has: the nanny takes its share.
export DASKMM_MEMORY=auto
if [ -n "${SLURM_MEM_PER_CPU:-}" ]; then
    DASKMM_MEMORY=$((SLURM_MEM_PER_CPU * DASKMM_THREADS * 9 / 10))MiB
fi
folder=$(mktemp -d "$PWD/daskmm-${SLURM_JOB_ID:-0}.XXXXXX")
export DASKMM_FILE=$folder/scheduler.json

# What each task does; those of other nodes see the file when the scheduler is there.
task='
interface=${DASKMM_INTERFACE:+--interface $DASKMM_INTERFACE}
if [ "$SLURM_PROCID" = 0 ]; then
    exec "$PYTHON" -m dask scheduler --port 0 --dashboard-address :0 $interface \
        --scheduler-file "$DASKMM_FILE"
fi
exec "$PYTHON" -m dask worker --scheduler-file "$DASKMM_FILE" $interface --no-dashboard \
    --nworkers 1 --nthreads "$DASKMM_THREADS" --memory-limit "$DASKMM_MEMORY" \
    --local-directory "${TMPDIR:-/tmp}"
'
# A worker that is lost takes nobody with it. cpus-per-task is no longer inherited from sbatch.
srun --ntasks="$tasks" --cpus-per-task="$DASKMM_THREADS" --kill-on-bad-exit=0 \
    bash -c "$task" &
cluster=$!
command=
stop() {
    kill $command "$cluster" 2>/dev/null || true
    wait $command "$cluster" 2>/dev/null || true
    rm -rf "$folder"
}
trap stop EXIT
trap 'exit 143' TERM INT

until [ -s "$DASKMM_FILE" ]; do
    kill -0 "$cluster" 2>/dev/null || fail "srun ended before the scheduler was there"
    sleep 1
done
DASKMM_SCHEDULER=$("$PYTHON" -c '
import sys
from distributed import Client

with Client(scheduler_file=sys.argv[1]) as client:
    client.wait_for_workers(int(sys.argv[2]), timeout=300)
    print(client.scheduler.address)
' "$DASKMM_FILE" $((tasks - 1))) || fail "not all workers have come within five minutes"
export DASKMM_SCHEDULER

case $1 in
    *.py) set -- "$PYTHON" "$@" ;;
    daskmm) set -- "$@" --scheduler "$DASKMM_SCHEDULER" ;;
esac
"$@" &
command=$!
wait "$command"
