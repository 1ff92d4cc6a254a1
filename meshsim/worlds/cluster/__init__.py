"""Ranks as the processes of a job that torchrun, Slurm, Kubernetes or mpirun started: gloo, NCCL or HCCL.

The world is ``meshsim.worlds.cluster.world.ClusterWorld``; importing this package imports nothing of it, so
that finding out whether there is a job costs nothing.
"""
