"""Real steps with known document lengths, compared with the simulator's: `python3 -m measured`."""
