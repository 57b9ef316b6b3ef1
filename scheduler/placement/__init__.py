"""Where the work of a device's processors is done on this machine."""
