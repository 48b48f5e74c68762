"""What timings share: the protocol, goals, plots, numbers of parameters, and the table that follows from times."""
