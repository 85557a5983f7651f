"""What every training program needs: devices and processes, a progress line, Ctrl-C as a wish, weight files, curves."""
