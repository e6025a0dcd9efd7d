"""Wide runs: everything that the simulator can draw, also what other runs do not draw.

Other runs keep what their seeds draw, so that a seed that has found something finds it again. A
kind of fault or a trait of streams that is new is drawn here. Half of the wide runs have a mix on
top: traits and faults that are seldom drawn together, and have found something together.
"""

from bascule.sim.cluster.wide.draw import draw_wide

__all__ = ["draw_wide"]
