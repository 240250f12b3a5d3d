"""Experiments: workloads, harness, peers, tables and figures."""
