"""Engine processes that a Ray cluster places, on the machines that have the devices (`data_parallel_backend='ray'`).

This includes one engine on several hosts (`distributed_executor_backend='ray'`).

Ray starts a process and says when it has ended; requests and outputs never go through Ray.
"""
