"""A phone behind `adb`: what a bundle takes there, signature by signature and processor by processor, as measurements for a fit."""
