"""Models as files that hold data and nothing else: no name in them is called, and every number is checked."""
