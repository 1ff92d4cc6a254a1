#!/bin/sh
# Open MPI starts the ranks; meshsim uses nothing else of it.
#
#   HOSTS=gpu01:8,gpu02:8 RANKS=16 ci/cluster/mpirun.sh smoke --topology dp_shard=2,tp=8 --budget 300
#
# Rank 0 runs on the first host of the list; mpirun doesn't tell the ranks, so it is told here.
set -eu

: "${HOSTS:=localhost:2}" "${RANKS:=2}" "${PORT:=29500}"
first=${HOSTS%%,*}
first=${first%%:*}

exec mpirun -np "$RANKS" --host "$HOSTS" --map-by slot --bind-to none \
    -x MASTER_ADDR="${MASTER:-$first}" -x MASTER_PORT="$PORT" -x PATH \
    python -m meshsim "${@:-smoke}"
