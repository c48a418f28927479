"""The command line: streamsvm learn, predict, inspect, demo."""
