"""Results kept between starts, each under a fingerprint of everything that it depends on."""
