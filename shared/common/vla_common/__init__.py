"""What every program of the lab needs, whatever it does: the shared volume, how it ends, how its health is asked.

Only the standard library is needed, and nothing else of the lab.
"""
