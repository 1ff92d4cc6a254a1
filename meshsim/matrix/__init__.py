"""Choosing few topologies that exercise many combinations of sizes."""
