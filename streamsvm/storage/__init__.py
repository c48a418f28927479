"""Models as files: what is written is data, and reading it calls nothing that the file chose."""
