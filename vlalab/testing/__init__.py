"""`./lab test`: its parts, run side by side, and what came of them."""
