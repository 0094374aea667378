"""A whole run in one process, under a clock, a disk, processes and sockets that obey a seed."""
