#!/bin/bash
# One run after the other, each by all GPUs of all nodes of the job:
#     sbatch --nodes 2 --gpus-per-node 8 docs/slurm/nodes.sh run imagenet-resnet50 --data PATH
# Five minutes before its time is over, the job saves its run and queues itself again; it continues
# from there.
#SBATCH --job-name=trainact
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=64
#SBATCH --time=48:00:00
#SBATCH --signal=B:USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail
nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
first=${nodes%%$'\n'*}
port=$((20000 + SLURM_JOB_ID % 10000))
gpus=${SLURM_GPUS_ON_NODE:?ask for GPUs, as with --gpus-per-node 8}

srun --cpus-per-task "$SLURM_CPUS_PER_TASK" python -m torch.distributed.run \
    --nnodes "$SLURM_NNODES" --nproc-per-node "$gpus" \
    --rdzv-id "$SLURM_JOB_ID" --rdzv-backend c10d --rdzv-endpoint "$first:$port" \
    -m trainact.lab "$@" &
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
