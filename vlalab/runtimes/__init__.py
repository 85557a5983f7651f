"""Services as local processes or as containers, behind one interface."""
