"""What Python asks the devices that jobs run on."""
