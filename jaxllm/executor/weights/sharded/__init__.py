"""Parameters on disk as they lie on the devices, so that reading them again takes what the disk takes."""
