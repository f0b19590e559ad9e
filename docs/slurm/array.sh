#!/bin/bash
# The runs of a recipe spread over array jobs of one GPU each, numbered from 1:
#     sbatch --array 1-20 --time 24:00:00 docs/slurm/array.sh run cifar100-table --out /shared/runs
# docs/reproduce.md has the time for the share of one job of each recipe. Five minutes before that
# time is over, the job saves its run and queues itself again. What is done is not done twice.
#SBATCH --job-name=trainact
#SBATCH --gpus=1
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

srun --cpus-per-task "$SLURM_CPUS_PER_TASK" python -m trainact.lab "$@" \
    --shard "$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT" &
step=$!

stopping=
trap 'signal=yes; stopping=yes; kill -TERM "$step" || true' USR1  # the run is saved, then srun ends
trap 'signal=yes; kill -TERM "$step" || true' TERM INT
signal=yes
while [ -n "$signal" ]; do  # a signal ends the wait before the step has ended
    signal= code=0
    wait "$step" || code=$?
done
if [ -n "$stopping" ] && [ "$code" -ne 0 ]; then
    echo "the time is over: job $SLURM_JOB_ID queues itself again"
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
