"""Clusters of many jobs and devices: job traces, the simulator, reports."""
