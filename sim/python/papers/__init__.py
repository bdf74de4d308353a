"""Compares the four papers' tables and figures with ours: `./run.sh papers`."""
