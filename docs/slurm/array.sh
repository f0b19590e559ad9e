#!/bin/bash
# The runs of a recipe spread over array jobs of one GPU each, numbered from 1:
#     sbatch --array 1-20 docs/slurm/array.sh run cifar100-table --out /shared/runs
# A job that is stopped is taken up again by the same command; what is done is not done twice.
#SBATCH --job-name=trainact
#SBATCH --gpus=1
#SBATCH --cpus-per-task=8
#SBATCH --time=48:00:00
#SBATCH --requeue
set -euo pipefail
srun --cpus-per-task "$SLURM_CPUS_PER_TASK" python -m trainact.lab "$@" \
    --shard "$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT"
