"""Choosing among the configs of one descriptor by measurement, and the tables that hold what was found."""
