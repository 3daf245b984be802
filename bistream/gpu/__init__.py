"""GPU code that the stages share: the choice of tier for a network and a device, and building blocks of kernels."""
