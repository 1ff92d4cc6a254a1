#!/bin/sh
# One torchrun agent on each host; run this on every host, with its number.
#
#   NODES=2 NODE_RANK=0 GPUS=8 MASTER=gpu01 ci/cluster/torchrun.sh smoke --topology dp_shard=2,tp=8 --budget 300
#
# MASTER is the host of number 0. Everything after the script's name goes to meshsim.
set -eu

: "${NODES:=1}" "${NODE_RANK:=0}" "${GPUS:=gpu}" "${MASTER:=127.0.0.1}" "${PORT:=29500}"

exec torchrun \
    --nnodes "$NODES" --node-rank "$NODE_RANK" --nproc-per-node "$GPUS" \
    --master-addr "$MASTER" --master-port "$PORT" \
    -m meshsim "${@:-smoke}"
