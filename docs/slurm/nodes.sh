#!/bin/bash
# One run after the other, each by all GPUs of all nodes of the job:
#     sbatch --nodes 2 --gpus-per-node 8 docs/slurm/nodes.sh run imagenet-resnet50 --data PATH
# A job that is stopped is taken up again by the same command, from its last checkpoint.
#SBATCH --job-name=trainact
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=64
#SBATCH --time=48:00:00
#SBATCH --requeue
set -euo pipefail
nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
first=${nodes%%$'\n'*}
port=$((20000 + SLURM_JOB_ID % 10000))
gpus=${SLURM_GPUS_ON_NODE:?ask for GPUs, as with --gpus-per-node 8}
srun --cpus-per-task "$SLURM_CPUS_PER_TASK" python -m torch.distributed.run \
    --nnodes "$SLURM_NNODES" --nproc-per-node "$gpus" \
    --rdzv-id "$SLURM_JOB_ID" --rdzv-backend c10d --rdzv-endpoint "$first:$port" \
    -m trainact.lab "$@"
