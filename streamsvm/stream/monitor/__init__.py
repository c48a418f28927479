"""Shows over HTTP what a running loop does: metrics for Prometheus, checks of health, and a page."""

from streamsvm.stream.monitor.monitor import Monitor, MonitorError

__all__ = ["Monitor", "MonitorError"]
