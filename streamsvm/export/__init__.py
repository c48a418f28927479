"""Models for use elsewhere: as a program, as C, as ONNX, as JSON, or as a file for numpy alone."""
