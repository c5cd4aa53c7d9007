"""Engine processes that a Ray cluster places, on the machines that have the devices (`data_parallel_backend='ray'`).

Those of one engine on several hosts as well (`distributed_executor_backend='ray'`).

Ray starts a process and says when it has ended; requests and outputs never go through Ray.
"""
