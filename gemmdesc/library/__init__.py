"""cuBLASLt as a black box: one interface, the real library behind it, and a simulated one."""
