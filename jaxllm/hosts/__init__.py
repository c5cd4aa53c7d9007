"""One engine in processes on several hosts: the first leads, the others repeat its calls of programs."""
