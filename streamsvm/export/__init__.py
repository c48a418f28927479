"""Models made ready for other places: as a program, C, ONNX, JSON, or a file that numpy alone reads."""
