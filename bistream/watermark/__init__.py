"""A mark in the audio that programs find and people do not hear, of the package resemble-perth. Import nothing here at a default start."""
