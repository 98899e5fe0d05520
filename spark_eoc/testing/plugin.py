"""pytest plugin: real servers, processes and schedules as fixtures."""
