#!/usr/bin/env bash
# An rlforge command over the nodes of a Slurm job. The first node runs the command and keeps the run
# directory; engines, collectors and learner use all nodes. The arguments are those of rlforge:
#
#   sbatch --nodes 4 --gpus-per-node 8 --time 24:00:00 deploy/slurm.sh \
#       train +experiment=qwen3_1p7b_simpletak_tuned hardware=cluster engine.num_engines=31
#
# Two minutes before the time limit the command gets SIGTERM: it saves and ends; go on with
# deploy/slurm.sh train --resume RUN. Activate the environment that has rlforge before sbatch.
#SBATCH --job-name=rlforge
#SBATCH --ntasks-per-node=1
#SBATCH --signal=B:TERM@120
set -euo pipefail

port=${RAY_PORT:-6379}
head=$(hostname)
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN
RAY_AUTH_TOKEN=$(python -c 'import secrets; print(secrets.token_hex(32))')

ray start --head --block --port "$port" --include-dashboard false &
ray=$!
trap 'kill "$ray"' EXIT # not `ray stop`, which ends those of other jobs too
until ray health-check --address "$head:$port" 2>/dev/null; do
    kill -0 "$ray" # ends this script, where Ray could not start
    sleep 1
done
if [ "$SLURM_JOB_NUM_NODES" -gt 1 ]; then
    srun --nodes "$((SLURM_JOB_NUM_NODES - 1))" --ntasks "$((SLURM_JOB_NUM_NODES - 1))" \
        --exclude "$head" ray start --address "$head:$port" --block &
fi

# What hardware.ray_address=auto means, of hardware=cluster: a run that is resumed finds it as well.
export RAY_ADDRESS="$head:$port"
# The run waits two minutes for nodes that are still starting. In the background, since bash handles
# a signal only while it waits.
rlforge "$@" &
command=$!
trap 'kill -TERM "$command"' TERM
while kill -0 "$command" 2>/dev/null; do # a signal ends the wait, not the command
    wait "$command" && code=0 || code=$?
done
exit "$code"
